"""The agents against the stand-in of the remote services, without Azure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from services import Services

from orders import business
from sas import Business, Call, RefusedError

ORDER = {"product": "tea", "quantity": 2, "card": "4000-1"}


@pytest.fixture
async def shop() -> AsyncIterator[Business]:
    """Return the business, wired to services that only this test uses."""
    async with TestServer(Services().app()) as server:
        address = str(server.make_url("/"))
        wired = business({"STOCK_URL": address, "PAYMENT_URL": address})
        yield wired
        for agent in wired.agents.values():
            await agent.close()


def call(step: str, order: dict[str, Any] = ORDER, **results: Any) -> Call:
    """Return a call as the system makes it."""
    complete_by = datetime.now(UTC) + timedelta(seconds=30)
    return Call(
        order_id="A-1",
        step=step,
        key=f"A-1/{step}",
        complete_by=complete_by,
        order=order,
        results=results,
    )


async def test_the_same_key_again_charges_nothing_more(shop: Business) -> None:
    reserved = await shop.agents["stock"].do(call("reserve"))
    pay = call("pay", reserve=reserved)
    first = await shop.agents["payment"].do(pay)
    assert first["price"] == 40
    assert await shop.agents["payment"].do(pay) == first


async def test_what_was_undone_is_refused_later(shop: Business) -> None:
    await shop.agents["stock"].undo(call("reserve"))
    with pytest.raises(RefusedError, match="it was undone"):
        await shop.agents["stock"].do(call("reserve"))


async def test_a_declined_card_is_refused_for_good(shop: Business) -> None:
    with pytest.raises(RefusedError, match="no such card"):
        await shop.agents["payment"].do(
            call("pay", {**ORDER, "card": "declined"}, reserve={"price": 40})
        )
