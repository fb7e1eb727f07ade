"""An operator who sends messages again while the system runs, by the rules of the commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from sas.operate.letters import (
    READ_MAX,
    Letter,
    dead_letter_paths,
    judge,
    letter_of,
    read,
)
from sas.operate.redriving import PlannedMove, resend
from sas.ports import StoreUnavailableError, UnavailableError
from sas.testing.bus import Queued
from sas.testing.platform import QUEUES, REPLIES_TO
from sas.testing.world import CrashError, World, of_no_host

AGAIN_S = 60.0
"""After this time an operator repeats a command that died, and looks for dead letters again."""
JUDGE_TRIES = 4


class Redriver:
    """Runs ``sas messages resend``. A command may die before it ends."""

    def __init__(
        self,
        world: World,
        agents: Sequence[str],
        redriven: list[bytes],
        tell: Callable[[str], None],
    ) -> None:
        """Add each message that leaves the queue of rejected messages to ``redriven``."""
        self._world, self._agents, self._redriven, self._tell = world, agents, redriven, tell
        self._left_in_place: set[int] = set()

    async def resend(self, *, back: bool, dies: bool) -> None:
        """Resend the rejected messages. If the command dies, the operator gives it again.

        ``back``: with ``--to``, so that messages that only the system itself sends go back too.
        """
        of_no_host()
        verb = "resend of rejected messages"
        while not await self._completes(verb, self._resend(back=back, dies=dies)):
            dies = False
            await self._world.clock.sleep(AGAIN_S)

    async def redrive(self, *, dies: bool) -> None:
        """Redrive the dead letters that are safe to send again."""
        of_no_host()
        await self._completes("resend of dead letters", self._redrive(dies=dies))

    def waiting(self, paths: Iterable[str]) -> Iterator[Queued]:
        """Yield the dead letters, except those that a command judged and decided to leave."""
        queues = self._world.memory_bus.queues
        for path in paths:
            letters = (*queues[path].waiting, *queues[path].locked)
            yield from (queued for queued in letters if queued.sequence not in self._left_in_place)

    async def _completes(self, verb: str, work: Awaitable[None]) -> bool:
        """Run a command. Return whether it came to its end."""
        try:
            await work
        except (CrashError, UnavailableError) as error:
            end = "dies" if isinstance(error, CrashError) else f"fails: {error}"
            self._tell(f"the command {verb} {end}")
            return False
        return True

    async def _resend(self, *, back: bool, dies: bool) -> None:
        peeked = await self._world.bus.peek(QUEUES.rejected, READ_MAX)
        letters = [letter_of(QUEUES.rejected, message, QUEUES) for message in peeked]
        plan = resend(letters, QUEUES)
        moves = list(plan.moves)
        staying = {row.message_id for row in plan.staying} if back else set()
        for letter in letters:
            source = self._source_of(letter)
            if source and letter.peeked.message_id in staying:
                moves += resend([letter], QUEUES, source).moves
        await self._move(moves, dies=dies)

    def _source_of(self, letter: Letter) -> str | None:
        """Return the queue that gave up a rejected message; None if no function reads it."""
        record, handled = letter.rejected, self._world.instances[0].functions.handlers
        return record.source_queue if record and record.source_queue in handled else None

    async def _redrive(self, *, dies: bool) -> None:
        paths = dead_letter_paths(QUEUES, self._agents, [REPLIES_TO])
        bus = self._world.memory_bus
        there = [path for path in paths if path in bus.queues]
        letters = (await read(bus, there, QUEUES)).letters
        moves = resend([await self._judged(letter) for letter in letters], QUEUES).moves
        sequences = {number for plan in moves for number in plan.move.sequences}
        self._left_in_place |= {letter.peeked.sequence for letter in letters} - sequences
        self._tell(f"resend of dead letters: {len(moves)} of {len(letters)} dead letters")
        await self._move(moves, dies=dies)

    async def _judged(self, letter: Letter) -> Letter:
        """Judge a letter, and repeat a read that fails. Otherwise no long list could be judged.

        Raises:
            StoreUnavailableError: the table is away.
        """
        store = self._world.store

        async def with_verdict() -> Letter:
            order = await store.load(letter.order_id) if letter.order_id else None
            return replace(letter, verdict=await judge(store, letter, order, QUEUES))

        for _ in range(JUDGE_TRIES):
            with suppress(CrashError, StoreUnavailableError):
                return await with_verdict()
        return await with_verdict()

    async def _move(self, moves: Sequence[PlannedMove], *, dies: bool) -> None:
        """Move messages as ``OperatorBus.move`` does: lock, send, and remove at last."""
        world, bus = self._world, self._world.memory_bus
        for plan in moves:
            letters = bus.lock(plan.path, plan.move.sequences)
            if not letters:
                continue  # they are gone, or another reader has them
            try:
                assert plan.move.message is not None  # noqa: S101  a redrive sends
                await world.bus.send([plan.move.message])
                if plan.path == QUEUES.rejected:
                    self._redriven += [queued.message.body for queued in letters]
                await self._dies() if dies else await world.pause()
            except (CrashError, UnavailableError) as error:
                for queued in letters:
                    bus.let_go(queued) if isinstance(error, CrashError) else bus.abandon(queued)
                raise
            for queued in letters:
                bus.complete(queued)

    async def _dies(self) -> None:
        raise CrashError
