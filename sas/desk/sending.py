"""The commands that this desk sent, and what became of each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid4

from sas.desk.watch import Watch
from sas.domain.order import Order
from sas.domain.queues import Queues
from sas.operate import commands
from sas.operate.commands import CommandResult, Intent, OrderCommand
from sas.operate.errors import CommandError
from sas.ports import MessageBus, StateStore, UnavailableError

WAIT_S = 30.0
KEPT_MAX = 200


@dataclass(frozen=True, slots=True)
class Seen:
    """An order as an operator saw it. ``steps`` are those that a resubmit runs again."""

    seq: int | None
    urgent: bool
    steps: frozenset[int]

    @classmethod
    def of(cls, order: Order, intent: Intent) -> Seen:
        """Return what is kept of an order that is shown."""
        return cls(order.seq, order.details.urgent, commands.resubmitted(order, intent))


@dataclass(slots=True, kw_only=True)
class Sent:
    """Commands that were sent together. ``ended`` has what became of them, once that is known.

    ``failed`` says of each order how its steps failed again, None while they run again.
    """

    intent: Intent
    asked: Sequence[OrderCommand]
    at: datetime
    key: str = field(default_factory=lambda: uuid4().hex)
    ended: Sequence[CommandResult] = ()
    problem: str = ""
    failed: Mapping[str, str] | None = None

    @property
    def pending(self) -> bool:
        """Whether nothing is known yet."""
        return not self.ended and not self.problem

    @property
    def done(self) -> Sequence[CommandResult]:
        """Those that were carried out."""
        return [one for one in self.ended if one.carried_out]

    @property
    def refused(self) -> Sequence[tuple[str, str]]:
        """The other orders, and why they did not change."""
        return [
            (one.command.order_id, commands.why_not_done(one, WAIT_S))
            for one in self.ended
            if not one.carried_out
        ]


class Sender:
    """Sends commands, and waits in the background for what becomes of them."""

    def __init__(self, store: StateStore, bus: MessageBus, queues: Queues, watch: Watch) -> None:
        self._store = store
        self._bus = bus
        self._queues = queues
        self._watch = watch
        self._sent: dict[str, Sent] = {}
        self._waiting: set[asyncio.Task[None]] = set()

    def find(self, key: str) -> Sent | None:
        """Return commands that were sent, by their key."""
        return self._sent.get(key)

    async def send(self, intent: Intent, seen: Mapping[str, Seen], at: datetime) -> Sent:
        """Send a command for each order, with the seq that was seen, in its lane.

        Raises:
            UnavailableError: the bus did not take them.
        """
        asked = [
            OrderCommand(order_id=order_id, seq=one.seq, urgent=one.urgent)
            for order_id, one in seen.items()
        ]
        before = 0
        for batch in commands.batches(asked):
            await commands.send(
                self._bus, batch, intent, self._queues, sent_before=before, total=len(asked)
            )
            before += len(batch)
        made = Sent(intent=intent, asked=asked, at=at)
        self._sent[made.key] = made
        for old in list(self._sent)[:-KEPT_MAX]:
            del self._sent[old]
        task = asyncio.create_task(self._wait(made, seen))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return made

    async def _wait(self, sent: Sent, seen: Mapping[str, Seen]) -> None:
        try:
            sent.ended = await commands.wait(self._store, sent.asked, self._queues, WAIT_S)
        except (UnavailableError, CommandError) as away:
            sent.problem = f"the result is not known: {away}"
        self._watch.forget(seen)
        again = {one.command.order_id: seen[one.command.order_id].steps for one in sent.done}
        with suppress(UnavailableError, CommandError):
            found = await commands.wait_for_steps(self._store, again, WAIT_S)
            said = {name: commands.failed_again(one, again[name]) for name, one in found.items()}
            sent.failed = {name: how for name, how in said.items() if how}
        self._watch.forget(seen)

    async def settled(self) -> None:
        """Return once it is known what became of every command."""
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def close(self) -> None:
        """Stop waiting. The commands are still carried out."""
        for task in self._waiting:
            task.cancel()
        await self.settled()
