"""An operator's night in a real browser, over function_app.py, the broker, Azurite and services.

It needs Debian's chromium (apt-get install chromium). With SAS_IMAGES=1 the screenshots of the
pages go to docs/images, otherwise to pytest's temporary directory.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import shutil
import subprocess
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Browser, Page, async_playwright, expect

from samples.services.faults import Faults, Verb
from sas.adapters.endpoints import Endpoint
from sas.adapters.queues import OperatorServiceBus
from sas.cli.desk import Entrance
from sas.desk.server import Desk, Office, serving
from sas.domain import messages
from sas.domain.order import Fault
from sas.domain.queues import Queues
from sas.operate import commands
from sas.operate.commands import ActRun, Intent
from tests import business
from tests.contract import cases
from tests.functions_rig import ROOT, Rig, rig, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

AXE = Path(__file__).parent / "axe"
CARE = "order-with-care"
CALM = Faults(latency=0.05)
DECLINES = Faults(permanent=0.2, latency=0.05)
PATIENCE_MS = 240_000
expect.set_options(timeout=PATIENCE_MS)


def refused(order_id: str, generation: int = 0) -> bool:
    """Whether the payment service declines the card of an order, with its n-th edited input."""
    key = f"{order_id}/take-payment" + (f"/{generation}" if generation else "")
    return DECLINES.refuses("payment", Verb.DO, key)


NAMES = [f"NW-{number}" for number in range(10248, 10448)]
STUCK = next(name for name in NAMES if refused(name) and not refused(name, 1))
OTHERS = [name for name in NAMES if refused(name) and name != STUCK][:6]
FINE = [name for name in NAMES if not refused(name)][:24]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[Rig]:
    async with rig() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium was not found: apt-get install chromium")
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        await started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """Give the program that looks for what keeps people out, installed from its lock."""
    program, npm = AXE / "node_modules/axe-core/axe.min.js", shutil.which("npm")
    if not program.exists():
        if npm is None:
            pytest.skip("npm was not found and axe-core is not installed")
        subprocess.run([npm, "ci", "--no-fund", "--no-audit"], cwd=AXE, check=True, timeout=300)
    return program.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def patient_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The desk waits for a command as long as the browser does."""
    monkeypatch.setattr("sas.desk.sending.WAIT_S", PATIENCE_MS / 1000)


@asynccontextmanager
async def desk_of(system: Rig) -> AsyncIterator[Desk]:
    bus = OperatorServiceBus.connect(Endpoint(connection_string=system.settings["ServiceBus"]))
    office = Office(
        store=system.store,
        bus=bus,
        queues=Queues(),
        by="ann",
        where="table orders",
        workflows=business.workflows(),
    )
    try:
        async with serving(office) as desk:
            yield desk
    finally:
        await bus.close()


@asynccontextmanager
async def page_of(chromium: Browser, desk: Desk, **how: Any) -> AsyncIterator[Page]:
    """A page that is logged in. Every complaint of the browser fails the test."""
    context = await chromium.new_context(**({"viewport": {"width": 1280, "height": 860}} | how))
    context.set_default_timeout(PATIENCE_MS)
    page, complaints = await context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: complaints.append(request.url) if request.url[:16] != LOCAL else None,
    )
    await page.goto(desk.guard.new_link())
    await page.wait_for_url(f"**{desk.guard.place}")
    try:
        yield page
    finally:
        await context.close()
    assert [text for text in complaints if "409" not in text] == []


LOCAL = "http://127.0.0.1"


async def picture(page: Page, name: str, tmp_path: Path, *, whole: bool = False) -> None:
    folder = ROOT / "docs" / "images" if os.environ.get("SAS_IMAGES") else tmp_path
    folder.mkdir(exist_ok=True)
    # Nothing is hovered, and no animation is running.
    await page.mouse.move(0, 0)
    await page.screenshot(path=folder / f"{name}.png", full_page=whole, animations="disabled")


async def nobody_is_kept_out(page: Page, axe: str) -> None:
    """Assert that axe finds nothing. It runs as an extension would: beside the page's policy."""
    session = await page.context.new_cdp_session(page)
    script = f"{axe}; axe.run().then(found => JSON.stringify(found.violations))"
    answer = await session.send(
        "Runtime.evaluate", {"expression": script, "awaitPromise": True, "returnByValue": True}
    )
    violations = json.loads(answer["result"]["value"])
    brief = [
        (violation["id"], [node["target"] for node in violation["nodes"]][:3])
        for violation in violations
    ]
    assert brief == []


async def an_hour(system: Rig) -> None:
    """Write what an hour without trouble leaves in the table: the charts need something to draw."""
    now, rules = datetime.now(UTC), cases.rules_of(1)

    async def completed(number: int) -> None:
        at = now - timedelta(minutes=3 + number * 7 % 54, seconds=number)
        began = at - timedelta(seconds=1 + number * number % 5)
        first = cases.submitted(f"NW-{10_448 + number}", rules, at=began)
        details = replace(first.after.details, submitted_at=began)
        order = await system.store.commit(
            replace(first, after=replace(first.after, details=details))
        )
        order = await system.store.commit(cases.claimed(order, rules))
        await system.store.commit(cases.answered(order, 0, rules, at=at))

    for start in range(0, 120, 4):
        await asyncio.gather(*map(completed, range(start, start + 4)))


async def trouble(system: Rig) -> None:
    """Submit orders while the payment service declines the cards of some."""
    system.remote.set_faults(CALM)
    system.remote.set_faults(DECLINES, "payment")
    for order_id in (*FINE[:12], STUCK, *OTHERS, *FINE[12:]):
        await system.submit(order_id, workflow=CARE)
    for order_id in (STUCK, *OTHERS):
        await system.ends(order_id, "Error")
    for order_id in FINE:
        await system.ends(order_id, "Processed")


async def test_an_operators_night(system: Rig, chromium: Browser, axe: str, tmp_path: Path) -> None:
    await an_hour(system)
    async with system.host(), desk_of(system) as desk:
        await trouble(system)
        async with page_of(chromium, desk) as page:
            await _found_understood_and_mended(system, page, axe, tmp_path)
            await _somebody_was_faster(system, desk, page)
            await _the_others_are_resubmitted_at_once(system, page, axe)
            await _works_by_keyboard(page)
        await _looks_well_elsewhere(chromium, desk, axe)


POISON = "NW-20001"


async def test_a_poison_message_is_explained_and_resent(
    system: Rig, chromium: Browser, axe: str
) -> None:
    """A message that crashed every instance is sent again, because the defect is repaired."""
    system.remote.set_faults(CALM)
    await system.submit(POISON, workflow=CARE)
    crashed = {"reason": "MaxDeliveryCountExceeded", "error_description": "it crashed five times"}
    await system.give_up("orders", **crashed)
    async with system.host(), desk_of(system) as desk, page_of(chromium, desk) as page:
        await system.ends(POISON, "Rejected")
        await page.locator("#nav").get_by_role("link", name="Rejected messages").click()
        lies = page.locator("li", has=page.get_by_role("link", name=POISON))
        await lies.get_by_role("link", name="Send again").click()
        await expect(page.locator(".will")).to_contain_text("It would be sent to orders again")
        await nobody_is_kept_out(page, axe)
        assert await system.state(POISON) == "Rejected"  # nothing was sent yet
        await page.get_by_role("button", name="Send to orders").click()
        await expect(page.locator("#news")).to_contain_text(
            "Sent to orders, and removed from orders-rejected."
        )
        await nobody_is_kept_out(page, axe)
        assert await system.ends(POISON, "Processed")
        await page.get_by_role("link", name=POISON).click()
        await expect(page.locator("#head h1 .chip")).to_have_text("Processed")


async def test_a_storm_of_500_failed_orders_is_one_screen(
    system: Rig, chromium: Browser, axe: str
) -> None:
    """Its groups come first, with one click to the form of a group; no text is too wide."""
    rules = cases.rules_of(1)

    async def failed(number: int) -> None:
        order = await system.store.commit(cases.submitted(f"ST-{number}", rules))
        order = await system.store.commit(cases.claimed(order, rules))
        change = cases.refused(order, 0, rules)
        fault = Fault(f"cause-{number % 5}", "the service said that this cannot be done at all")
        steps = (replace(change.after.steps[0], error=fault), *change.after.steps[1:])
        await system.store.commit(replace(change, after=replace(change.after, steps=steps)))

    for start in range(0, 500, 20):
        await asyncio.gather(*map(failed, range(start, start + 20)))
    async with desk_of(system) as desk:
        for width, height in ((1280, 800), (390, 844)):
            viewport = {"width": width, "height": height}
            async with page_of(chromium, desk, viewport=viewport) as page:
                rows = page.locator("#failures .groups tbody tr")
                await expect(rows).to_have_count(5)
                await expect(rows.first).to_be_in_viewport()
                await page.get_by_role("link", name="Resubmit these 100").first.click()
                await expect(page.get_by_role("button", name="Resubmit these 100")).to_be_visible()
                await nobody_is_kept_out(page, axe)
                wide = "document.documentElement.scrollWidth - innerWidth"
                assert await page.evaluate(wide) <= 0
                if width > 1000:  # one line for each row
                    heights = "r => r.map(row => row.offsetHeight)"
                    rows = page.locator(".rows tbody tr")
                    assert max(await rows.evaluate_all(heights)) < 60


async def test_a_browser_gets_in_by_the_private_page_and_gives_no_other_server_its_cookie(
    system: Rig, chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that another user of this machine serves may send the browser to itself."""
    addresses, cookies = queue.Queue[str](), []
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(webbrowser, "open", addresses.put)

    async def other_page(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie"))
        answer = web.Response(text="again")
        if len(cookies) == 1:
            answer.headers["Refresh"] = "0; url=/orders"  # from the same site: Strict allows it
        return answer

    app = web.Application()
    app.router.add_get("/{path:.*}", other_page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with desk_of(system) as desk:
            entrance = Entrance(desk.guard, as_json=True, at_terminal=True)
            entrance.open_browser(entrance.new_link())
            page = await chromium.new_page()
            await page.goto(await asyncio.to_thread(addresses.get))
            await expect(page).to_have_title("Overview · Operator's desk")
            await page.goto(f"http://127.0.0.1:{runner.addresses[0][1]}/")
            await page.wait_for_url("**/orders")
            await page.close()
    finally:
        await runner.cleanup()
    assert set(cookies) == {None}
    assert len(cookies) >= 2


async def _found_understood_and_mended(system: Rig, page: Page, axe: str, tmp_path: Path) -> None:
    await expect(page.locator("#hero h1")).to_have_text(f"{1 + len(OTHERS)} orders need you.")
    await expect(page.locator("#nav")).to_contain_text(re.compile(r"Alerts\s*1"))  # of one cause
    await nobody_is_kept_out(page, axe)
    await picture(page, "desk-overview", tmp_path)
    await page.locator("#failures").get_by_role("link", name="take-payment").click()
    await nobody_is_kept_out(page, axe)
    await page.get_by_role("link", name=STUCK).click()
    await expect(page.locator(".story")).to_contain_text("It stopped at take-payment")
    await expect(page.locator(".story")).to_contain_text("card was declined")
    await expect(page.locator("#waits")).to_contain_text("Agent payment")
    await page.locator("#verb-resubmit summary").click()
    await expect(page.locator("#verb-resubmit .will")).to_contain_text("Run again: take-payment")
    await nobody_is_kept_out(page, axe)
    await page.get_by_role("link", name="With other input").click()
    field = page.locator("#verb-resubmit textarea")
    content = json.loads(await field.input_value())
    await field.fill(json.dumps(content | {"customer_id": "ERNSH"}, indent=2))
    await page.locator("#verb-resubmit [name=reason]").fill("the customer gave another card")
    await nobody_is_kept_out(page, axe)
    await field.evaluate("one => one.scrollTo(0, 0)")  # where the input differs
    await picture(page, "desk-order", tmp_path)
    await page.get_by_role("button", name=f"Resubmit {STUCK}").click()
    await expect(page.locator("#news")).to_contain_text("Done: resubmit is row")
    await expect(page.locator("#head h1 .chip")).to_have_text("Processed")  # nothing was loaded
    await expect(page.locator("#journal")).to_contain_text("the customer gave another card")
    assert await system.state(STUCK) == "Processed"
    step = (await system.order(STUCK)).steps[1]
    assert json.loads(step.call.edited or "")["customer_id"] == "ERNSH"


async def _somebody_was_faster(system: Rig, desk: Desk, page: Page) -> None:
    order_id = OTHERS[0]
    await page.goto(f"{page.url.rpartition('/')[0]}/order?id={order_id}&edit=1")
    field = page.locator("#verb-resubmit textarea")
    await field.press_sequentially(" ")
    typed = await field.input_value()
    order = await system.order(order_id)
    await _acknowledge(desk, order_id)
    await expect(page.locator("#stale")).to_be_visible()  # told before the form is sent
    await page.get_by_role("button", name=f"Resubmit {order_id}").click()
    await expect(page.locator("#news")).to_contain_text(
        f"Nothing was sent: you saw seq {order.seq}"
    )
    await expect(page.locator("#news")).to_contain_text("acknowledged by operator bob")
    order = await system.order(order_id)
    async with page.expect_response(lambda answer: "x-live" in answer.request.headers):
        await _acknowledge(desk, order_id)
    await expect(page.locator("#head h1 .chip")).to_have_text("Error")
    assert json.loads(await field.input_value()) == json.loads(typed)
    await expect(page.locator("#news")).to_contain_text("Nothing was sent")
    assert await system.state(order_id) == "Error"


async def _acknowledge(desk: Desk, order_id: str) -> None:
    intent = Intent(verb=messages.Verb.ACKNOWLEDGE, by="bob")
    plan = await commands.plan_one(desk.office.store, order_id, intent)
    await ActRun(plan, desk.office.store, desk.office.queues).send(desk.office.bus)


async def _the_others_are_resubmitted_at_once(system: Rig, page: Page, axe: str) -> None:
    system.remote.set_faults(CALM)
    await page.locator("#nav").get_by_role("link", name="Overview").click()
    await page.get_by_role("link", name=f"Resubmit these {len(OTHERS)}").click()
    await page.get_by_label("Reason").fill("the card service is back")
    await nobody_is_kept_out(page, axe)
    await page.get_by_role("button", name=f"Resubmit these {len(OTHERS)}").click()
    await expect(page.locator("#news")).to_contain_text(
        f"Carried out: {len(OTHERS)} of {len(OTHERS)}."
    )
    await page.locator("#nav").get_by_role("link", name="Overview").click()
    await expect(page.locator("#hero h1")).to_have_text("Nothing needs you.")
    for order_id in OTHERS:
        assert await system.ends(order_id, "Processed")


async def _works_by_keyboard(page: Page) -> None:
    await page.keyboard.press("/")
    await page.keyboard.type(STUCK[-4:])
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/orders?**")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.locator("#head h1")).to_contain_text(STUCK)
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"


async def _looks_well_elsewhere(chromium: Browser, desk: Desk, axe: str) -> None:
    """On a phone, and in the dark."""
    phone = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
    for name, how in (
        ("phone", phone | {"color_scheme": "dark"}),
        ("dark", {"color_scheme": "dark"}),
    ):
        async with page_of(chromium, desk, timezone_id="Asia/Tokyo", **how) as page:
            for path in ("orders?state=all", "inbox?name=alerts", f"order?id={STUCK}", ""):
                await page.goto(f"{page.url.rpartition('/')[0]}/{path}")
                await nobody_is_kept_out(page, axe)
                wide = "document.documentElement.scrollWidth - innerWidth"
                assert await page.evaluate(wide) <= 0, (name, path)
            await until(lambda: _drawn(page), "the charts")
            await page.goto(f"{page.url}order?id={STUCK}")
            moment = page.locator("#journal time").first
            local = datetime.fromisoformat(await moment.inner_text() + "+09:00")
            assert local == datetime.fromisoformat(await moment.get_attribute("datetime") or "")


async def _drawn(page: Page) -> bool:
    return await page.locator("#rates .bar").count() > 0
