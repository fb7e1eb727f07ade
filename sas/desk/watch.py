"""What the desk knows of all orders: read from the store in the background, again and again.

A page is drawn from the last ``Picture``, so it never waits for the store. Index rows tell most of
it. An order that is under way or in Error is loaded once, and again when its rows change.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain

from sas.desk.rows import Block, Row, with_rows, without
from sas.domain.change import StepDue
from sas.domain.order import Order, OrderState, StepState
from sas.features.circuit_breaker.guard import breakers
from sas.features.circuit_breaker.rules import Breaker
from sas.features.incidents.board import active_incidents
from sas.features.incidents.rules import ActiveIncident, is_over
from sas.operate import finding
from sas.ports import StateStore, Summary, UnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)
EVERY_S = 2.0
LOADS_MAX = 1000
"""Orders loaded in one look at most: the others follow in the next."""
FRESH_FOR_S = 30.0
"""An order in Error is loaded again after this time: an acknowledgement changes no index row."""
FINISHED_MAX = 200_000
"""Finished orders kept at most: the oldest are dropped."""
READ_SIZE = 1000
WINDOW = timedelta(hours=1)
LATE = timedelta(minutes=1)
"""A finished order's index row may become visible so long after its moment."""
_PAST = (WINDOW, timedelta(days=1), timedelta(days=7), timedelta(days=3650))
_END_OF_TIME = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All orders at one moment. ``whole``: everything was read once, also the past.

    The finished orders lie in ``blocks``, the oldest first; ``finished`` has their ids.
    """

    at: datetime
    version: int = 0
    in_error: Block = field(default_factory=Block)
    under_way: Block = field(default_factory=Block)
    blocks: tuple[Block, ...] = ()
    finished: Collection[str] = ()
    counts: Mapping[OrderState, int] = field(default_factory=dict)
    failures: Sequence[tuple[str, int]] = ()
    oldest: StepDue | None = None
    circuits: Mapping[str, Breaker] = field(default_factory=dict)
    incidents: Sequence[ActiveIncident] = ()
    whole: bool = False
    problem: str = ""

    @property
    def total(self) -> int:
        """How many orders are known."""
        return len(self.in_error) + len(self.under_way) + len(self.finished)


class Watch:
    """Reads the store, and keeps the last ``Picture``. ``changed`` wakes those that wait for it."""

    def __init__(self, store: StateStore, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self.picture = Picture(at=now())
        self._changed = asyncio.Condition()
        self._gate = asyncio.Semaphore(finding.LOADS_AT_ONCE)
        self._finished: dict[str, Row] = {}
        self._blocks: list[Block] = []
        self._finished_to: datetime | None = None
        self._past = list(_PAST)
        self._past_from = now()
        self._loaded: dict[str, tuple[object, float, Row | None]] = {}

    async def run(self) -> None:
        """Look again and again until this is cancelled. A store that is away is looked at again."""
        while True:
            began = time.monotonic()
            try:
                await self.look()
            except UnavailableError as away:
                await self._show(problem=str(away))
            # A large or slow store is not read all the time.
            pause_s = max(EVERY_S, 3 * (time.monotonic() - began))
            await asyncio.sleep(0.1 if self._past and not self.picture.problem else pause_s)

    async def changed(self, version: int) -> int:
        """Return the version of the picture once it differs from this one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.picture.version != version)
            return self.picture.version

    def forget(self, order_ids: Iterable[str]) -> None:
        """Load these orders again at the next look: a command changed them."""
        for order_id in order_ids:
            self._loaded.pop(order_id, None)

    async def look(self) -> None:
        """Read everything that may have changed, and keep it as the new picture."""
        now = self._now()
        circuits = {name: one.value for name, one in (await breakers(self._store).all()).items()}
        known = [one.value for one in (await active_incidents(self._store).all()).values()]
        incidents = [one for one in known if one is not None and not is_over(one, now)]
        in_error = Block(await self._read_in_error())
        found, oldest = await self._read_under_way({row.order_id for row in in_error})
        under_way = Block(found)
        await self._read_finished(now)
        # An order that was finished, and was taken up again.
        self._drop({row.order_id for row in chain(in_error, under_way)})
        for block in (in_error, under_way, *self._blocks):
            block.prepare()
            await asyncio.sleep(0)  # a page that is asked for goes first
        failures = Counter(name for row in in_error for name in row.failed).most_common(20)
        await self._show(
            at=now,
            in_error=in_error,
            under_way=under_way,
            blocks=tuple(self._blocks),
            finished=self._finished.keys(),
            counts=_counts((in_error, under_way, *self._blocks)),
            failures=failures,
            oldest=oldest,
            circuits=circuits,
            incidents=incidents,
            whole=not self._past,
            problem="",
        )

    async def _show(self, **changes: object) -> None:
        async with self._changed:
            known = {name: getattr(self.picture, name) for name in Picture.__slots__}
            known |= changes | {"version": self.picture.version + 1}
            self.picture = Picture(**known)
            self._changed.notify_all()

    async def _read_in_error(self) -> list[Row]:
        found: dict[str, Summary] = {}
        async for batch in finding.summaries(self._store, in_error=True, size=READ_SIZE):
            found.update((one.order_id, one) for one in batch)
        keys: dict[str, object] = {name: one.at for name, one in found.items()}
        loaded = await self._load(keys, fresh_for_s=FRESH_FOR_S)
        rows = [_known(loaded.get(name), one) for name, one in found.items()]
        # The index row of an order that was taken up again goes a moment later than its state.
        return [row for row in rows if row.state is OrderState.ERROR]

    async def _read_under_way(self, in_error: set[str]) -> tuple[list[Row], StepDue | None]:
        keys: dict[str, set[object]] = {}
        oldest: StepDue | None = None
        for shard in self._store.shards:
            for due in await self._store.due(shard, _END_OF_TIME, finding.UNDER_WAY_MAX):
                if due.order_id and due.order_id not in in_error:
                    keys.setdefault(due.order_id, set()).add(due)
                if isinstance(due, StepDue) and (oldest is None or due.at < oldest.at):
                    oldest = due
        loaded = await self._load({name: frozenset(dues) for name, dues in keys.items()})
        rows = [loaded.get(name, Row(order_id=name, state=None)) for name in keys]
        known = {*keys, *in_error}
        self._loaded = {name: one for name, one in self._loaded.items() if name in known}
        under_way = [row for row in rows if row is not None and not _settled(row)]
        return under_way, oldest

    async def _load(
        self, keys: Mapping[str, object], fresh_for_s: float = float("inf")
    ) -> dict[str, Row | None]:
        """Return the rows of these orders, as far as they are loaded. A new key loads again."""
        now, wanted = time.monotonic(), []
        for name, key in keys.items():
            known = self._loaded.get(name)
            if known is None or known[0] != key or now - known[1] > fresh_for_s:
                wanted.append(name)
        wanted = wanted[:LOADS_MAX]
        for start in range(0, len(wanted), finding.BATCH_ORDERS):
            names = wanted[start : start + finding.BATCH_ORDERS]
            rows = await asyncio.gather(*map(self._row, names))
            self._loaded |= {
                name: (keys[name], now, row) for name, row in zip(names, rows, strict=True)
            }
        return {name: self._loaded[name][2] for name in keys if name in self._loaded}

    async def _row(self, order_id: str) -> Row | None:
        """Return an order as a row; None if it is gone. One that is broken hides no others."""
        async with self._gate:
            try:
                order = await self._store.load(order_id)
            except UnavailableError:
                raise
            except Exception as broken:  # noqa: BLE001  rows that were changed by hand
                log.warning("order %s cannot be read: %r", order_id, broken)
                return Row(order_id=order_id, state=None, said=f"it cannot be read: {broken}")
        return row_of(order) if order is not None else None

    async def _read_finished(self, now: datetime) -> None:
        """Read what finished since the last look, and one more part of the past."""
        since, self._finished_to = self._finished_to, now - LATE
        if since is None:
            since = now - self._past.pop(0)
            self._past_from = since
        elif self._past:
            until = self._past_from
            self._past_from = now - self._past.pop(0)
            older = await self._finished_between(self._past_from, until)
            self._keep({name: row for name, row in older.items() if name not in self._finished})
        newer = await self._finished_between(since, None)
        self._keep({name: row for name, row in newer.items() if self._finished.get(name) != row})
        if len(self._finished) > FINISHED_MAX:
            rows = list(chain.from_iterable(self._blocks))
            self._drop({row.order_id for row in rows[:-FINISHED_MAX]})
            self._past.clear()

    def _keep(self, rows: Mapping[str, Row]) -> None:
        self._drop(set(rows))
        self._finished |= rows
        self._blocks = with_rows(self._blocks, list(rows.values()))

    def _drop(self, names: Iterable[str]) -> None:
        known = {name for name in names if self._finished.pop(name, None)}
        self._blocks = without(self._blocks, known)

    async def _finished_between(self, since: datetime, until: datetime | None) -> dict[str, Row]:
        found: dict[str, Row] = {}
        async for batch in finding.summaries(
            self._store, in_error=False, since=since, until=until, size=READ_SIZE
        ):
            found.update((one.order_id, _row_of(one)) for one in batch)
            if until is not None and len(found) > FINISHED_MAX:
                break
        return found


def row_of(order: Order) -> Row:
    """Return a loaded order as a row of a list."""
    failed = [step for step in order.steps if finding.is_failed(step)]
    settled = order.stopped_at
    done = {StepState.PROCESSED, StepState.COMPENSATED}
    return Row(
        order_id=order.order_id,
        state=order.process_state,
        workflow=order.details.workflow,
        since=finding.since(order) if order.steps else settled,
        submitted_at=order.details.submitted_at,
        seq=order.seq,
        failed=tuple(finding.fingerprints(order)),
        said="; ".join(step.error.message for step in failed if step.error) or finding.doing(order),
        done=sum(step.process_state in done for step in order.steps),
        steps=len(order.steps),
        acknowledged_by=order.acknowledged_by,
        urgent=order.details.urgent,
    )


def _counts(blocks: Iterable[Block]) -> dict[OrderState, int]:
    """Return how many orders there are in each state."""
    counts: Counter[OrderState] = Counter()
    for block in blocks:
        for (state, _), count in block.counts.items():
            counts[state or OrderState.PROCESSING] += count
    return {state: counts[state] for state in OrderState}


def _row_of(one: Summary) -> Row:
    said = f"undone: {one.undone_because}" if one.undone_because else ""
    return Row(
        order_id=one.order_id,
        state=one.process_state,
        workflow=one.workflow,
        since=one.at,
        submitted_at=one.submitted_at,
        said=said,
    )


def _known(row: Row | None, one: Summary) -> Row:
    """Return a loaded row, or what the index row tells of an order that is not loaded."""
    if row is None or row.state is None:
        return replace(_row_of(one), said=row.said if row else "")
    return row


def _settled(row: Row) -> bool:
    states = {OrderState.PROCESSED, OrderState.COMPENSATED, OrderState.REJECTED, OrderState.ERROR}
    return row.state in states
