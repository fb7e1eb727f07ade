"""What the desk knows of all orders: read from the store in the background, again and again.

Most pages are drawn from the last ``Picture``, so they do not wait for the store. There may be
100,000 orders, so almost none is loaded: index rows tell of the orders in Error and of the finished
ones, due rows of those under way.

1. *In Error*: the index row tells the errors.
2. *Finished*: the first look reads the last hour. Each further look reads an older part of the past
   too, until all is read. The index row of an order may become visible some time after it
   finished, so each look begins ``LATE`` before the look before it.
3. *Taken up again*: an operator undoes an order that was finished. It is then found under way or in
   Error, and leaves the finished orders.

A list loads the rows of its page that are under way (``loaded``).

One task (``run``) writes everything here. Pages read ``picture``, which is never changed, only
replaced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from msgspec import structs

from sas.operate import finding
from sas.operate.messages import QueueCount
from sas.operate.rows import OrderRow, row_of, row_of_summary
from sas.operate.status import SystemStatus, read_system, status_of
from sas.ports import CorruptOrderError, OtherVersionError, StateStore, UnavailableError

LOOK_EVERY_S = 2.0
SHOWN_MAX = 10
"""Orders in Error on the overview."""
FINISHED_MAX = 100_000
"""Most finished orders in memory. The oldest are dropped."""
LATE = timedelta(minutes=1)
"""The index row of an order may become visible so long after the order finished."""
_PAST = (timedelta(hours=1), timedelta(days=1), timedelta(days=7), timedelta(days=3650))
"""How far back each part of the past goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The system at one moment; ``status`` is None before the first look.

    The orders in Error and the finished ones come with the one first that has been in its state for
    the longest time, those under way with the one first that is due first. ``whole``: the whole
    past was read. ``queues_at`` is when the queues were counted; None before that.
    """

    at: datetime
    version: int = 0
    status: SystemStatus | None = None
    in_error: Sequence[OrderRow] = ()
    under_way: Sequence[OrderRow] = ()
    finished: Mapping[str, OrderRow] = field(default_factory=dict)
    whole: bool = False
    queues_at: datetime | None = None
    problem: str = ""


class Watch:
    """Reads the store, and keeps the last ``Picture``.

    ``queues`` is what lay in the queues at ``queues_at``, if somebody read it.
    """

    def __init__(self, store: StateStore, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self.picture = Picture(at=now())
        self.queues: Sequence[QueueCount] = ()
        self.queues_at: datetime | None = None
        self._changed = asyncio.Condition()
        self._gate = asyncio.Semaphore(finding.LOADS_AT_ONCE)
        self._finished: dict[str, OrderRow] = {}
        self._finished_to: datetime | None = None
        """What finished before this moment needs not be read again."""
        self._past = list(_PAST)
        """The parts of the past that are still to be read."""
        self._past_from = now()
        """The past is read from this moment on."""
        self._began: float | None = None

    async def run(self) -> None:
        """Look again and again until this is cancelled, also while the store is away."""
        while True:
            began = time.monotonic()
            try:
                await self.look()
            except UnavailableError as error:
                await self._show(replace(self.picture, problem=str(error)))
            # If a look takes long, because the store is large or slow, pause for longer.
            pause_s = max(LOOK_EVERY_S, 3 * (time.monotonic() - began))
            await asyncio.sleep(0.1 if self._past and not self.picture.problem else pause_s)

    async def changed(self, version: int) -> int:
        """Return the version of the picture once it differs from this one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.picture.version != version)
            return self.picture.version

    @property
    def waited_s(self) -> int:
        """For how many seconds the present look has been waiting for the store; 0 between looks."""
        return int(time.monotonic() - self._began) if self._began is not None else 0

    async def look(self) -> None:
        """Read everything that may have changed, and show it as the new picture."""
        self._began = time.monotonic()
        try:
            await self._look()
        finally:
            self._began = None

    async def _look(self) -> None:
        now = self._now()
        reading = await read_system(self._store, now)
        in_error = reading.in_error
        times = {due.order_id: due.at for due in reversed(reading.dues)}
        for row in in_error:
            times.pop(row.order_id, None)
        picture = Picture(
            at=now,
            status=status_of(reading, now, self.queues),
            in_error=in_error,
            under_way=[
                OrderRow(order_id=order_id, process_state=None, until=at)
                for order_id, at in reversed(times.items())
            ],
            finished=self.picture.finished,
            queues_at=self.queues_at,
        )
        if not self.picture.version:  # who opens the desk sees first what needs somebody
            await self._show(picture)
        await self._read_finished(now)
        for order_id in (*times, *(row.order_id for row in in_error)):  # 3. Taken up again.
            self._finished.pop(order_id, None)
        newest_last = sorted(self._finished.values(), key=lambda row: (row.since, row.order_id))
        self._finished = {row.order_id: row for row in newest_last[-FINISHED_MAX:]}
        finished = dict(self._finished)
        await self._show(replace(picture, finished=finished, whole=not self._past))

    async def _show(self, picture: Picture) -> None:
        """Keep a picture as the next version."""
        async with self._changed:
            self.picture = replace(picture, version=self.picture.version + 1)
            self._changed.notify_all()

    async def loaded(self, rows: Iterable[OrderRow]) -> list[OrderRow]:
        """Return these orders with all that a row tells, without those that do not exist any more.

        Only an order under way is loaded. An order that cannot be read gets a row that says why.
        """
        answers = await asyncio.gather(*map(self._loaded, rows))
        return [row for row in answers if row is not None]

    async def _loaded(self, row: OrderRow) -> OrderRow | None:
        if row.process_state is not None:
            return row
        async with self._gate:
            try:
                order = await self._store.load(row.order_id)
            except (CorruptOrderError, OtherVersionError) as error:
                return structs.replace(row, why=f"it cannot be read: {error}")
        return row_of(order, self._now()) if order is not None else None

    async def _read_finished(self, now: datetime) -> None:
        """Read what finished since the last look, and one more part of the past."""
        # 2. Finished.
        since, self._finished_to = self._finished_to, now - LATE
        if since is None:  # the first look
            since = now - self._past.pop(0)
            self._past_from = since
        elif self._past:
            until = self._past_from
            self._past_from = now - self._past.pop(0)
            older = await self._finished_between(self._past_from, until)
            self._finished = older | self._finished
        newer = await self._finished_between(since, None)
        self._finished |= newer
        if len(self._finished) > FINISHED_MAX:
            self._past.clear()

    async def _finished_between(
        self, since: datetime, until: datetime | None
    ) -> dict[str, OrderRow]:
        rows: dict[str, OrderRow] = {}
        async for batch in finding.summaries(self._store, in_error=False, since=since, until=until):
            rows.update((summary.order_id, row_of_summary(summary)) for summary in batch)
            if until is not None and len(rows) > FINISHED_MAX:
                break
        return rows
