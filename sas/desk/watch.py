"""What the desk knows of all orders: read from the store in the background, again and again.

A page is drawn from the last ``Picture``, so it never waits for the store. There may be 100,000
orders, so few of them are loaded. How each kind of order is found:

1. *In Error*: each has an index row. It is loaded once, for its steps and their errors, and again
   when its index row changes. It is also loaded again after ``FRESH_FOR_S``, because an
   acknowledgement changes no index row.
2. *Under way*: each has a due row. It is loaded once, and again when its due rows change; while an
   agent has a bug also after ``FRESH_FOR_S``, because its errors change no due row. Before it is
   loaded the first time, a row shows it without details.
3. *Finished*: each has an index row that tells all that a list shows, so none is loaded. The first
   look reads the last hour. Each further look reads an older part of the past too, until all is
   read. The index row of an order may become visible some time after it finished, so each look
   begins ``LATE`` before the look before it.
4. *Taken up again*: an operator undoes an order that was finished. It is then found under way or in
   Error, and leaves the finished orders.

A look loads at most ``LOADED_MAX`` orders in Error, and as many under way. The others keep their
old rows until the next look.

One task (``run``) writes everything here. Only ``forget``, which the sender of commands calls,
removes loaded orders too. Pages read ``picture``, which is never changed, only replaced.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain

from sas.desk.rows import Block, Row, with_rows, without
from sas.domain.change import StepDue
from sas.domain.messages import AlertKind
from sas.domain.order import Order, OrderState, StepState
from sas.features.circuit_breaker.guard import breakers
from sas.features.circuit_breaker.rules import Breaker
from sas.features.incidents.board import active_incidents
from sas.features.incidents.rules import ActiveIncident, is_over
from sas.operate import finding
from sas.operate.why import waits_of
from sas.ports import StateStore, Summary, UnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)
LOOK_EVERY_S = 2.0
LOADED_MAX = 1000
"""Most orders in Error that are loaded in one look, and most orders under way."""
FRESH_FOR_S = 30.0
"""A loaded order of which no row may tell a change is loaded again after this time, in seconds."""
FINISHED_MAX = 200_000
"""Most finished orders in memory. The oldest are dropped."""
LATE = timedelta(minutes=1)
"""The index row of an order may become visible so long after the order finished."""
_PAST = (timedelta(hours=1), timedelta(days=1), timedelta(days=7), timedelta(days=3650))
"""How far back each part of the past goes."""
_END_OF_TIME = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All orders at one moment. ``whole`` says that the whole past was read.

    The finished orders are in ``blocks``, the oldest first. ``finished`` has them
    by id.
    ``failures`` counts the orders in Error by fingerprint. ``oldest`` is the step that has been due
    for the longest time.
    """

    at: datetime
    version: int = 0
    in_error: Block = field(default_factory=Block)
    under_way: Block = field(default_factory=Block)
    blocks: tuple[Block, ...] = ()
    finished: Mapping[str, Row] = field(default_factory=dict)
    counts: Mapping[OrderState, int] = field(default_factory=dict)
    failures: Sequence[tuple[str, int]] = ()
    oldest: StepDue | None = None
    circuits: Mapping[str, Breaker] = field(default_factory=dict)
    incidents: Sequence[ActiveIncident] = ()
    whole: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A loaded order. ``revision`` is what its index row or its due rows said when it was loaded.

    If they say something else, the order is loaded again.
    """

    revision: object
    at: float
    row: Row | None


class Watch:
    """Reads the store, and keeps the last ``Picture``."""

    def __init__(self, store: StateStore, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self.picture = Picture(at=now())
        self._changed = asyncio.Condition()
        self._gate = asyncio.Semaphore(finding.LOADS_AT_ONCE)
        self._loaded: dict[str, _Loaded] = {}
        self._finished: dict[str, Row] = {}
        self._blocks: list[Block] = []
        """The same rows as in ``_finished``, sorted."""
        self._finished_to: datetime | None = None
        """What finished before this moment needs not be read again."""
        self._past = list(_PAST)
        """The parts of the past that are still to be read."""
        self._past_from = now()
        """The past is read from this moment on."""

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

    def forget(self, order_ids: Iterable[str]) -> None:
        """Load these orders again at the next look: a command changed them."""
        for order_id in order_ids:
            self._loaded.pop(order_id, None)

    async def look(self) -> None:
        """Read everything that may have changed, and show it as the new picture."""
        now = self._now()
        circuits = {
            agent: shared.value for agent, shared in (await breakers(self._store).all()).items()
        }
        shared_incidents = await active_incidents(self._store).all()
        incidents = [
            incident
            for incident in (shared.value for shared in shared_incidents.values())
            if incident is not None and not is_over(incident, now)
        ]
        in_error = Block(await self._read_in_error())
        has_bug = any(incident.kind is AlertKind.AGENT_FAILING for incident in incidents)
        rows, oldest = await self._read_under_way(
            {row.order_id for row in in_error}, FRESH_FOR_S if has_bug else float("inf")
        )
        under_way = Block(rows)
        await self._read_finished(now)
        self._drop({row.order_id for row in chain(in_error, under_way)})  # 4. Taken up again.
        for block in (in_error, under_way, *self._blocks):
            block.prepare()
            await asyncio.sleep(0)  # let the server answer a request in between
        fingerprints = Counter(name for row in in_error for name in row.fingerprints)
        await self._show(
            Picture(
                at=now,
                in_error=in_error,
                under_way=under_way,
                blocks=tuple(self._blocks),
                finished=self._finished,
                counts=_counts((in_error, under_way, *self._blocks)),
                failures=fingerprints.most_common(20),
                oldest=oldest,
                circuits=circuits,
                incidents=incidents,
                whole=not self._past,
            )
        )

    async def _show(self, picture: Picture) -> None:
        """Keep a picture as the next version."""
        async with self._changed:
            self.picture = replace(picture, version=self.picture.version + 1)
            self._changed.notify_all()

    async def _read_in_error(self) -> list[Row]:
        # 1. In Error.
        summaries: dict[str, Summary] = {}
        async for batch in finding.summaries(self._store, in_error=True):
            summaries.update((summary.order_id, summary) for summary in batch)
        revisions = {order_id: summary.at for order_id, summary in summaries.items()}
        loaded = await self._load(revisions, fresh_for_s=FRESH_FOR_S)
        rows = [
            _row_in_error(loaded.get(order_id), summary) for order_id, summary in summaries.items()
        ]
        # An order that was taken up again leaves Error a moment before its index row is removed.
        return [row for row in rows if row.state is OrderState.ERROR]

    async def _read_under_way(
        self, in_error: set[str], fresh_for_s: float
    ) -> tuple[list[Row], StepDue | None]:
        """Return the orders under way, and the step of any order that has been due the longest."""
        # 2. Under way.
        due_rows: dict[str, set[object]] = {}
        oldest: StepDue | None = None
        for shard in self._store.shards:
            for due in await self._store.due(shard, _END_OF_TIME, finding.UNDER_WAY_MAX):
                if due.order_id and due.order_id not in in_error:
                    due_rows.setdefault(due.order_id, set()).add(due)
                if isinstance(due, StepDue) and (oldest is None or due.at < oldest.at):
                    oldest = due
        loaded = await self._load(
            {order_id: frozenset(dues) for order_id, dues in due_rows.items()},
            fresh_for_s=fresh_for_s,
        )
        rows = [loaded.get(order_id, Row(order_id=order_id, state=None)) for order_id in due_rows]
        self._loaded = {
            order_id: entry
            for order_id, entry in self._loaded.items()
            if order_id in due_rows or order_id in in_error
        }
        return [row for row in rows if row is not None and not _is_stopped(row)], oldest

    async def _load(
        self, revisions: Mapping[str, object], fresh_for_s: float
    ) -> dict[str, Row | None]:
        """Load the orders whose revision is new, and return the rows of all that are loaded.

        A row is None if its order does not exist any more.
        """
        now = time.monotonic()

        def is_fresh(order_id: str) -> bool:
            entry = self._loaded.get(order_id)
            return (
                entry is not None
                and entry.revision == revisions[order_id]
                and now - entry.at <= fresh_for_s
            )

        stale = [order_id for order_id in revisions if not is_fresh(order_id)][:LOADED_MAX]
        for start in range(0, len(stale), finding.BATCH_ORDERS):
            order_ids = stale[start : start + finding.BATCH_ORDERS]
            rows = await asyncio.gather(*map(self._row, order_ids))
            for order_id, row in zip(order_ids, rows, strict=True):
                self._loaded[order_id] = _Loaded(revisions[order_id], now, row)
        return {
            order_id: self._loaded[order_id].row
            for order_id in revisions
            if order_id in self._loaded
        }

    async def _row(self, order_id: str) -> Row | None:
        """Return an order as a row; None if it is gone. A broken order gets a row that says why."""
        async with self._gate:
            try:
                order = await self._store.load(order_id)
            except UnavailableError:
                raise
            except Exception as error:  # noqa: BLE001  rows that were changed by hand
                log.warning("order %s cannot be read: %r", order_id, error)
                return Row(order_id=order_id, state=None, why=f"it cannot be read: {error}")
        return row_of(order, self._now()) if order is not None else None

    async def _read_finished(self, now: datetime) -> None:
        """Read what finished since the last look, and one more part of the past."""
        # 3. Finished.
        since, self._finished_to = self._finished_to, now - LATE
        if since is None:  # the first look
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
        """Add finished orders, in the place of what was known of them."""
        self._drop(set(rows))
        self._finished |= rows
        self._blocks = with_rows(self._blocks, list(rows.values()))

    def _drop(self, order_ids: Iterable[str]) -> None:
        """Remove those of these orders that are among the finished ones."""
        finished = {order_id for order_id in order_ids if self._finished.pop(order_id, None)}
        self._blocks = without(self._blocks, finished)

    async def _finished_between(self, since: datetime, until: datetime | None) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        async for batch in finding.summaries(self._store, in_error=False, since=since, until=until):
            rows.update((summary.order_id, _row_of_summary(summary)) for summary in batch)
            if until is not None and len(rows) > FINISHED_MAX:
                break
        return rows


def row_of(order: Order, now: datetime) -> Row:
    """Return a loaded order as a row of a list."""
    failed = [step for step in order.steps if finding.is_failed(step)]
    errors = "; ".join(step.error.message for step in failed if step.error)
    done = {StepState.PROCESSED, StepState.COMPENSATED}
    return Row(
        order_id=order.order_id,
        state=order.process_state,
        workflow=order.details.workflow,
        since=finding.since(order) if order.steps else order.stopped_at,
        submitted_at=order.details.submitted_at,
        seq=order.seq,
        fingerprints=tuple(finding.fingerprints(order)),
        why=errors or " ".join(waits_of(step, now).awaited for step in order.steps if step.turn),
        steps_done=sum(step.process_state in done for step in order.steps),
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


def _row_of_summary(summary: Summary) -> Row:
    """Return what an index row tells of an order that is not loaded."""
    return Row(
        order_id=summary.order_id,
        state=summary.process_state,
        workflow=summary.workflow,
        since=summary.at,
        submitted_at=summary.submitted_at,
        why=f"undone: {summary.undone_because}" if summary.undone_because else "",
    )


def _row_in_error(loaded: Row | None, summary: Summary) -> Row:
    """Return the loaded row. Without it, return what the index row tells."""
    if loaded is None or loaded.state is None:
        return replace(_row_of_summary(summary), why=loaded.why if loaded else "")
    return loaded


def _is_stopped(row: Row) -> bool:
    """Return whether an order is finished or in Error: it is not under way any more."""
    states = {OrderState.PROCESSED, OrderState.COMPENSATED, OrderState.REJECTED, OrderState.ERROR}
    return row.state in states
