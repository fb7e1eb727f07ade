"""The commands that this desk sent, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from sas.domain.queues import Queues
from sas.operate.commands import ActPlan, ActRun, Intent, OrderAct
from sas.operate.errors import CommandError
from sas.ports import MessageBus, StateStore, UnavailableError

WAIT_S = 30.0
"""The results are followed until nothing new comes for so many seconds."""
GROUPS_MAX = 200
"""Most groups of commands that are remembered. The page of an older group is gone."""


@dataclass(slots=True, kw_only=True)
class CommandGroup:
    """Commands that were sent together. ``problem`` says why no more can be known of them."""

    run: ActRun
    key: str = field(default_factory=lambda: uuid4().hex)
    problem: str = ""

    @property
    def intent(self) -> Intent:
        """What the operator wants done."""
        return self.run.plan.intent

    @property
    def results(self) -> Sequence[OrderAct]:
        """What is known of each order."""
        return self.run.results

    @property
    def pending(self) -> bool:
        """Whether a result is missing, and may come."""
        return not self.problem and any(
            result.carried_out is None and not result.problem for result in self.results
        )

    @property
    def carried_out(self) -> Sequence[OrderAct]:
        """The results of the commands that were carried out."""
        return [result for result in self.results if result.carried_out]

    @property
    def refused(self) -> Sequence[OrderAct]:
        """The results of the orders that did not change."""
        return [result for result in self.results if result.problem and not result.carried_out]

    @property
    def failed_again(self) -> Sequence[OrderAct]:
        """The results of the orders of which steps failed again."""
        return [result for result in self.results if result.failed_again]


class Sender:
    """Sends commands, and follows their results in the background."""

    def __init__(self, store: StateStore, bus: MessageBus, queues: Queues) -> None:
        self._store = store
        self._bus = bus
        self._queues = queues
        self._groups: dict[str, CommandGroup] = {}
        self._waiting: set[asyncio.Task[None]] = set()

    def find(self, key: str) -> CommandGroup | None:
        """Return the group of commands with this key, or None."""
        return self._groups.get(key)

    async def send(self, plan: ActPlan) -> CommandGroup:
        """Send the commands of a plan.

        Raises:
            ServiceUnavailableError: the bus did not take them.
        """
        group = CommandGroup(run=ActRun(plan, self._store, self._queues))
        await group.run.send(self._bus)
        self._groups[group.key] = group
        for old_key in list(self._groups)[:-GROUPS_MAX]:
            del self._groups[old_key]
        task = asyncio.create_task(self._follow(group))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return group

    async def _follow(self, group: CommandGroup) -> None:
        try:
            await group.run.follow(WAIT_S)
        except (UnavailableError, CommandError) as error:
            group.problem = f"the result is not known: {error}"

    async def settled(self) -> None:
        """Return when the result of every command is known."""
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def close(self) -> None:
        """Stop following. The commands are still carried out."""
        for task in self._waiting:
            task.cancel()
        await self.settled()
