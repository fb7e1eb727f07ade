"""The commands that this desk sent, and their results."""

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
"""Longest wait for the results of commands, in seconds."""
GROUPS_MAX = 200
"""Most groups of commands that are remembered. The page of an older group is gone."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An order as an operator saw it. ``steps`` has the steps that a resubmit runs again."""

    seq: int | None
    urgent: bool
    steps: frozenset[int]

    @classmethod
    def of(cls, order: Order, intent: Intent) -> Snapshot:
        """Return what the desk remembers of an order that it shows."""
        return cls(order.seq, order.details.urgent, commands.resubmitted(order, intent))


@dataclass(slots=True, kw_only=True)
class CommandGroup:
    """Commands that were sent together, and their results.

    ``results`` is empty until they are known. ``problem`` says why they cannot be known.
    ``failed_again`` says how the steps of an order failed again. It is None while the steps run.
    """

    intent: Intent
    commands: Sequence[OrderCommand]
    at: datetime
    key: str = field(default_factory=lambda: uuid4().hex)
    results: Sequence[CommandResult] = ()
    problem: str = ""
    failed_again: Mapping[str, str] | None = None

    @property
    def pending(self) -> bool:
        """Whether there is no result yet."""
        return not self.results and not self.problem

    @property
    def carried_out(self) -> Sequence[CommandResult]:
        """The results of the commands that were carried out."""
        return [result for result in self.results if result.carried_out]

    @property
    def refused(self) -> Sequence[tuple[str, str]]:
        """The other orders, and why they did not change."""
        return [
            (result.command.order_id, commands.why_not_done(result, WAIT_S))
            for result in self.results
            if not result.carried_out
        ]


class Sender:
    """Sends commands, and waits in the background for their results."""

    def __init__(self, store: StateStore, bus: MessageBus, queues: Queues, watch: Watch) -> None:
        self._store = store
        self._bus = bus
        self._queues = queues
        self._watch = watch
        self._groups: dict[str, CommandGroup] = {}
        self._waiting: set[asyncio.Task[None]] = set()

    def find(self, key: str) -> CommandGroup | None:
        """Return the group of commands with this key, or None."""
        return self._groups.get(key)

    async def send(
        self, intent: Intent, snapshots: Mapping[str, Snapshot], at: datetime
    ) -> CommandGroup:
        """Send a command for each order, with the seq that the operator saw, in the order's lane.

        Raises:
            UnavailableError: the bus did not take them.
        """
        requests = [
            OrderCommand(order_id=order_id, seq=snapshot.seq, urgent=snapshot.urgent)
            for order_id, snapshot in snapshots.items()
        ]
        sent_before = 0
        for batch in commands.batches(requests):
            await commands.send(
                self._bus,
                batch,
                intent,
                self._queues,
                sent_before=sent_before,
                total=len(requests),
            )
            sent_before += len(batch)
        group = CommandGroup(intent=intent, commands=requests, at=at)
        self._groups[group.key] = group
        for old_key in list(self._groups)[:-GROUPS_MAX]:
            del self._groups[old_key]
        task = asyncio.create_task(self._wait(group, snapshots))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return group

    async def _wait(self, group: CommandGroup, snapshots: Mapping[str, Snapshot]) -> None:
        """Wait for the results of commands, and then for the steps that run again."""
        try:
            group.results = await commands.wait(self._store, group.commands, self._queues, WAIT_S)
        except (UnavailableError, CommandError) as error:
            group.problem = f"the result is not known: {error}"
        self._watch.forget(snapshots)
        order_ids = [result.command.order_id for result in group.carried_out]
        steps = {order_id: snapshots[order_id].steps for order_id in order_ids}
        with suppress(UnavailableError, CommandError):
            orders = await commands.wait_for_steps(self._store, steps, WAIT_S)
            failures = {
                order_id: commands.failed_again(order, steps[order_id])
                for order_id, order in orders.items()
            }
            group.failed_again = {
                order_id: failure for order_id, failure in failures.items() if failure
            }
        self._watch.forget(snapshots)

    async def settled(self) -> None:
        """Return when the result of every command is known."""
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def close(self) -> None:
        """Stop waiting. The commands are still carried out."""
        for task in self._waiting:
            task.cancel()
        await self.settled()
