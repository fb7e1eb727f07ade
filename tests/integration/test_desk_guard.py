"""Who is kept out of the desk: other sites, other hosts, browsers that did not log in."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from yarl import URL

from tests.integration.desk_kit import Browser, desk_of
from tests.unit.actors_kit import CARE, kit, night

PAGES = (
    *("", "/", "orders", "order?id=10248", "inbox?name=alerts", "live", "sent?key=x", "/x"),
    *("/loginx", "/static/", "/static/nosuch"),
)


async def status_of(browser: Browser, link: str, method: str = "GET", **headers: str) -> int:
    headers = {name.replace("_", "-"): text for name, text in headers.items()}
    async with browser.http.request(
        method, browser.url(link), headers=headers, allow_redirects=False
    ) as answer:
        return answer.status


async def test_a_login_link_works_once_and_leaves_no_secret_in_an_address() -> None:
    async with desk_of(kit(CARE), logged_in=False) as browser:
        link = browser.desk.guard.new_link()
        async with browser.http.get(link, allow_redirects=False) as answer:
            assert answer.headers["Refresh"] == f"0; url={browser.desk.guard.place}"
            cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert await status_of(browser, "") == 200
        browser.http.cookie_jar.clear()
        assert await status_of(browser, link) == 403
        assert await status_of(browser, "") == 403


async def test_another_server_of_this_machine_gets_no_cookie_of_the_desk() -> None:
    """A browser sends the cookies of 127.0.0.1 to each of its ports."""
    async with desk_of(kit(CARE)) as browser:
        place, jar = browser.desk.guard.place, browser.http.cookie_jar
        for other in ("/", "/login", "/orders", "/static/desk.js", "/live"):
            assert not jar.filter_cookies(URL(f"http://127.0.0.1:9999{other}"))
        assert jar.filter_cookies(URL(f"http://127.0.0.1:9999{place}"))  # nobody else knows it
        for page in ("", "orders", "order?id=x"):
            assert place.strip("/") not in await browser.get(page, 404 if "=" in page else 200)


async def test_a_new_link_ends_the_one_before() -> None:
    async with desk_of(kit(CARE), logged_in=False) as browser:
        old, new = browser.desk.guard.new_link(), browser.desk.guard.new_link()
        assert await status_of(browser, old) == 403
        assert await status_of(browser, new) == 200


async def test_without_the_cookie_no_page_is_shown_and_no_store_is_read() -> None:
    async with desk_of(await night(), logged_in=False) as browser:
        for path in PAGES:
            assert "10248" not in await browser.get(path, 403)
            guess = f"{browser.desk.guard.cookie}=guessed"
            assert await status_of(browser, path, Cookie=guess) == 403, path


async def test_a_request_that_names_another_host_than_this_machine_is_refused() -> None:
    async with desk_of(await night()) as browser:
        port = browser.desk.guard.port
        others = ("evil.example", f"evil.example:{port}", "127.0.0.1:1", "127.0.0.1", "", "[::1]:1")
        for host in others:
            for path in ("", "/login?once=x", "/static/desk.js"):
                assert await status_of(browser, path, Host=host) in {400, 421}, host
        assert await status_of(browser, "", Host=f"localhost:{port}") == 200


async def test_a_form_of_another_site_or_without_its_token_does_nothing() -> None:
    system = await night()
    async with desk_of(system) as browser:
        origin, own_page = browser.origin, {"Origin": browser.origin}
        form = {"seq": str(system.order("10248").seq), "verb": "undo"}
        for headers in (
            *({}, {"Origin": "null"}, {"Origin": "https://evil.example"}),
            *({"Origin": "http://127.0.0.1:1"}, {"Origin": origin, "Sec-Fetch-Site": "cross-site"}),
            {"Origin": origin, "Sec-Fetch-Site": "same-site"},
        ):
            status, page = await browser.post_with(headers, "order?id=10248", **form)
            assert (status, "sent by another site. Nothing was done." in page) == (403, True)
        for token in ("", "guessed", "ÿ"):
            for path in ("order?id=10248", "orders", "resend?name=rejected"):
                status, page = await browser.post_with(own_page, path, **form, token=token)
                assert (status, "Load the page again" in page) == (403, True)
        assert browser.line.sent_messages == []


async def test_only_get_and_post_are_answered_and_a_get_sends_no_command() -> None:
    system = await night()
    async with desk_of(system) as browser:
        token, seq = browser.desk.guard.form_token, system.order("10248").seq
        path = f"order?id=10248&verb=undo&token={token}&seq={seq}"
        assert await status_of(browser, path, Origin=browser.origin) == 200
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            assert await status_of(browser, path, method) == 405, method
        assert browser.line.sent_messages == []


async def test_every_answer_forbids_other_sources_frames_and_caches() -> None:
    async with desk_of(await night()) as browser:
        for path in ("", "order?id=10248", "/static/desk.js", "nosuch", "/login?once=x", "live"):
            async with browser.http.get(browser.url(path)) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Frame-Options"] == "DENY"
                assert answer.headers["Cache-Control"] == "no-store"


async def test_no_page_names_another_address_or_has_script_or_style_of_its_own() -> None:
    async with desk_of(await night()) as browser:
        for path in ("", "orders", "order?id=10248&edit=1&content=1", "inbox?name=alerts"):
            page = await browser.get(path)
            assert "//" not in page.replace("<!doctype", "")
            assert " style=" not in page
            assert "<style" not in page
            assert "<script>" not in page
            assert " onclick" not in page
            assert browser.desk.guard._session not in page


async def test_only_the_files_of_the_page_are_served() -> None:
    async with desk_of(await night()) as browser:
        for name in ("../server.py", "..%2fserver.py", "desk.css/..", "nosuch"):
            assert await status_of(browser, f"/static/{name}") in {403, 404}, name


async def test_a_form_that_is_too_large_is_refused() -> None:
    async with desk_of(await night()) as browser:
        status, _ = await browser.post("order?id=10248", verb="resubmit", input="x" * 300_000)
        assert status == 413


async def test_what_strangers_send_is_not_written_to_the_operators_terminal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with desk_of(kit(CARE), logged_in=False) as browser:
        reader, writer = await asyncio.open_connection("127.0.0.1", browser.desk.guard.port)
        writer.write(b"GET /%s HTTP/1.1\r\n\r\n" % (b"x" * 9000))
        assert b" 400 " in await reader.readline()
        writer.close()
    assert caplog.records == []


async def test_it_listens_on_this_machine_only() -> None:
    async with desk_of(kit(CARE)) as browser:
        port = browser.desk.guard.port
        with socket.socket() as other, pytest.raises(OSError, match="refused"):
            other.connect(("127.0.0.2", port))
        async with aiohttp.ClientSession() as plain, plain.get(browser.origin) as answer:
            assert answer.status == 403
