"""The desk over the actors in memory: what an operator's browser asks of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape

import aiohttp
from yarl import URL

from sas.desk.server import Desk, Office, serving
from sas.ports import PayloadCodec
from tests.unit.actors_kit import QUEUES, Kit
from tests.unit.line_kit import OperatorLine

IDS = (
    *("a b%41", "Ä&+=\"'<", "NW-1:a@b;c,d", "{order_id}", "a}{b", ".", "..", "%2e%2e", "a%2Fb"),
    *(
        "$(touch x)`id`;",
        "--help",
        "a  b",
        "\u202e10248",
        "a\u200bb",
        "a\u0301",
        "\U000e0041",
        "日本",
    ),
)
"""Ids of orders that earlier versions took, so they are stored, and ids of messages."""


@dataclass
class Browser:
    """A browser that has logged in. It follows no redirect by itself."""

    desk: Desk
    line: OperatorLine
    http: aiohttp.ClientSession

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.desk.guard.port}"

    def url(self, link: str) -> URL:
        """The address to which a link leads that a page has. An empty link is the overview."""
        return URL(self.origin + self.desk.guard.place).join(URL(link, encoded=True))

    async def get(self, link: str, status: int = 200) -> str:
        async with self.http.get(self.url(link), allow_redirects=False) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text

    async def look(self, link: str) -> str:
        """The words of a page, after the desk has read the store and the queues again."""
        await self.desk.watch.look()
        await self.desk.inboxes.look()
        return words(await self.get(link))

    async def post(self, link: str, /, **form: str) -> tuple[int, str]:
        """Send a form; give the status, and where it leads or the words of its page."""
        return await self.post_with({"Origin": self.origin}, link, **form)

    async def post_with(
        self, headers: Mapping[str, str], link: str, /, **form: str
    ) -> tuple[int, str]:
        data = {"token": self.desk.guard.form_token} | form
        async with self.http.post(
            self.url(link), data=data, headers=headers, allow_redirects=False
        ) as answer:
            text = words(await answer.text())
            return answer.status, answer.headers.get("Location", text)


def words(html: str) -> str:
    """What a page says, without its tags."""
    body = re.sub(r"(?s)<(style|script|head|title)\b.*?</\1>", " ", html)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))


@asynccontextmanager
async def desk_of(
    system: Kit, *, logged_in: bool = True, codec: PayloadCodec | None = None
) -> AsyncIterator[Browser]:
    """A desk over these actors, and a browser."""
    line = OperatorLine(system=system)
    workflows, now = system.business.workflows, system.clock.now
    office = Office(
        store=system.store,
        bus=line,
        queues=QUEUES,
        by="ann",
        where="table orders",
        workflows=workflows,
        now=now,
        codec=codec,
    )
    jar = aiohttp.CookieJar(unsafe=True)  # takes cookies of an address
    async with serving(office) as desk, aiohttp.ClientSession(cookie_jar=jar) as http:
        browser = Browser(desk, line, http)
        if logged_in:
            async with http.get(desk.guard.new_link()) as answer:
                assert answer.status == 200
        yield browser
