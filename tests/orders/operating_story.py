"""One night of an operator, over the actors in memory: the examples of docs/operating.md.

``Story.type`` runs a command as it is typed. ``BEFORE`` has what happens to the system before some
of the commands.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sas.cli import application
from sas.cli.main import main
from sas.domain.queues import DEAD_LETTER_SUBQUEUE
from sas.features.version_check import Versions
from sas.ports import RefusedError
from tests.sample import BUSINESS, WORKFLOWS
from tests.unit import actors_kit
from tests.unit.actors_kit import SHOP, kit, order
from tests.unit.cli_kit import connect
from tests.unit.line_kit import OperatorLine

CARE = "order-with-care"
DECLINED = RefusedError("card-declined", "payment refused: the customer's card was declined")
NO_ADDRESS = RefusedError(
    "address-refused", "shipping refused: no carrier delivers to this address"
)


CONTENT = {
    "customer_id": "ALFKI",
    "ship_to": {"name": "A. F.", "address": "Obere Str. 57", "city": "Berlin", "country": "DE"},
    "lines": [{"product_id": 1, "product": "Chai", "unit_price": "18.00", "quantity": 2}],
}
RESULTS = {
    "inventory": {"reservation_id": "R-1"},
    "payment": {"charge_id": "C-1"},
    "shipping": {"shipment_id": "S-1", "tracking": "T-1"},
}


class Story(OperatorLine):
    """The system, and an operator who types commands."""

    async def fail(self, order_id: str, agent: str, error: RefusedError) -> None:
        """Submit an order that fails at one of its agents."""
        self.system.agents[agent].then(error)
        await self.submit(order_id)
        await self.system.drain()
        await self.system.later(1)

    async def submit(self, order_id: str) -> None:
        body = order(order_id, workflow=CARE, reply_queue=SHOP, order=CONTENT)
        await self.system.submit(body, f"m-{order_id}")

    def type(self, line: str) -> None:
        """Run a command as it is typed after ``$ sas``."""
        happens = BEFORE.get(line)
        if happens is not None:
            asyncio.run(happens(self))
        asyncio.run(self.system.later(2))
        main(shlex.split(line))


async def _start(story: Story) -> None:
    await story.fail("10248", "payment", DECLINED)
    await story.fail("10249", "payment", DECLINED)
    await story.fail("10250", "shipping", NO_ADDRESS)


async def _bob_was_here(story: Story) -> None:
    order = story.system.order("10250")
    command = actors_kit.command("acknowledge", order.seq, "w-bob", "10250")
    body = command.body.replace(b'"by":"ann"', b'"by":"bob"')
    await story.system.hand(replace(command, body=body))


async def _scheduler_stops(story: Story) -> None:
    story.runs = False


async def _payment_was_down(story: Story) -> None:
    story.runs = True
    for order_id in ("10252", "10253"):
        await story.fail(order_id, "payment", DECLINED)


async def _weeks_pass(story: Story) -> None:
    await story.system.later(21 * 86_400)


async def _versions(story: Story) -> None:
    await Versions(story.system.store, WORKFLOWS).check(story.system.order("10248"))


BEFORE: dict[str, Callable[[Story], Coroutine[Any, Any, None]]] = {
    "status": _start,
    "skip 10250 --seq 4 --yes": _bob_was_here,
    "undo 10249 --yes --wait 1": _scheduler_stops,
    "resubmit --state error --fingerprint take-payment/card-declined --yes": _payment_was_down,
    "list --to finished.jsonl --older-than 20": _weeks_pass,
    "workflows check": _versions,
}


def night_before(patching: pytest.MonkeyPatch, folder: Path) -> Story:
    """Return the system before the night, with the commands connected to it, in a folder."""
    patching.setattr(actors_kit, "AGENTS", tuple(sorted(WORKFLOWS.agents())))
    checks: dict[str, Any] = {CARE: BUSINESS.checks[CARE, 1]}
    night = Story(system=kit(*WORKFLOWS, **checks))
    night.system.bus.declare(*(name + DEAD_LETTER_SUBQUEUE for name in night.system.bus.queues))
    for name, result in RESULTS.items():
        night.system.agents[name].result = result
    night.system.clock.set(datetime(2026, 11, 21, 3, tzinfo=UTC))
    connect(patching, night.system, night)
    (folder / "pyproject.toml").write_text('[tool.sas]\napp = "orders"\n')
    patching.setattr(application, "PROJECT_FILE", "pyproject.toml")
    patching.chdir(folder)
    patching.setattr(sys, "path", [*sys.path])
    return night


def without_ids(text: str) -> str:
    """Return a text in which every command id is the same."""
    return re.sub(r"sas-[0-9a-f]{32}", "sas-" + "0" * 32, text)
