"""Excuses: a step past its CompleteBy has not failed while a message of it waits in a queue.

To the supervisor, a request that waits in a long queue looks like one whose agent crashed. If such
a wait counted, a burst of orders would undo healthy orders, and each reset would add one more
request to the same queue. So before a timeout counts, the supervisor looks into the queues of that
step, and only into those: another queue neither excuses it nor fails it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from sas.codec.strict import MalformedError
from sas.domain.change import Incident
from sas.domain.expire import REWAKE_MAX, Excuse
from sas.domain.messages import AlertKind
from sas.domain.order import Order, StepRecord, StepState
from sas.domain.queues import lane
from sas.domain.workflow import NO_TIME, UnknownWorkflowError, Workflows
from sas.engine.context import Context
from sas.engine.hooks import Excuses
from sas.engine.receiver import TIMES
from sas.ports import PEEK_BYTES_MAX, BusUnavailableError, UnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)
SCAN_MAX = 1_000
"""Most messages of one queue that a sweep reads. Large ones are fewer: see ``MessageBus.peek``."""
SOON = timedelta(minutes=1)
"""A message scheduled for later than this does not wait: it is a look at a long step."""
MOVES_WITHIN = timedelta(minutes=5)
"""A queue moves if a message was seen to leave it within this time."""
INCIDENT_DELAY_MIN = timedelta(minutes=1)
"""A message that waits longer, or a queue that is away for longer, is an incident."""

Owner = tuple[str, int | None, int | None]
"""The order of a message; for a request also its step and its epoch."""
OrderOf = Callable[[bytes], str]
"""Returns the order of a callback. Raises MalformedError if the body is not a callback."""


class _Envelope(msgspec.Struct):
    """What an internal message of any version belongs to. Other members are ignored."""

    kind: str
    order_id: str
    step: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """The oldest messages of one queue, by owner, with the time since when each can be received.

    A message that is locked is among them: Service Bus does not tell it from one that waits. So the
    request of a worker that was killed excuses its step until the lock ends, at most half a minute.
    Then it is redelivered.

    ``full`` says that there may be more of them. ``put_back`` are the owners of messages that were
    put back, because something else is away. ``away_since`` is set if it could not be read.
    """

    at: datetime
    oldest: dict[Owner, datetime]
    put_back: frozenset[Owner] = frozenset()
    ids: frozenset[str] = frozenset()
    full: bool = False
    moved_at: datetime | None = None
    away_since: datetime | None = None

    @property
    def moves(self) -> bool:
        """Whether a message was seen to leave the queue lately."""
        return self.moved_at is not None and self.at - self.moved_at <= MOVES_WITHIN


class QueueExcuses(Excuses):
    """See ``sas.engine.hooks.Excuses``. ``order_of_callback`` is None if callbacks are off."""

    def __init__(
        self, context: Context, workflows: Workflows, order_of_callback: OrderOf | None = None
    ) -> None:
        self._context = context
        self._workflows = workflows
        self._order_of_callback = order_of_callback
        self._scans: dict[str, Scan] = {}
        self._before: dict[str, Scan] = {}
        self._reported_at: dict[str, datetime] = {}
        self._scanning = asyncio.Lock()

    def begin_sweep(self) -> None:
        """See ``Excuses.begin_sweep``. Each queue is read once in a sweep."""
        self._before |= self._scans
        self._scans = {}

    async def of(self, order: Order, step: StepRecord) -> Excuse | None:
        """See ``Excuses.of``. If its request was not taken yet, only the agent's queue matters."""
        own = self._request_queue(order, step)
        if own is None:
            return None
        request = (order.order_id, step.number, step.epoch)
        scan = await self._scanned(own)
        found = await self._judge(own, scan, request, step)
        if found is Excuse.AWAY or scan.oldest.get(request, scan.at) < scan.at:
            return found
        excuses: list[Excuse | None] = [found]
        owner = (order.order_id, None, None)
        for queue in self._other_queues(order):
            scan = await self._scanned(queue)
            if owner in scan.oldest or not self._is_callbacks(queue) or _may_await(step):
                excuses.append(await self._judge(queue, scan, owner, step))
        best = (Excuse.WAITS, Excuse.AWAY, Excuse.STUCK)
        return next((excuse for excuse in best if excuse in excuses), None)

    def _request_queue(self, order: Order, step: StepRecord) -> str | None:
        """Return the queue of the agent that was asked; None if the workflow is not deployed."""
        details = order.details
        try:
            workflow = self._workflows.find(details.workflow, details.version)
        except UnknownWorkflowError:
            return None
        doing = step.process_state is StepState.PROCESSING
        route = step.call.route if doing or not step.undo.routes else step.undo.routes[0]
        agent = workflow.steps[step.number].agents[route]
        return self._context.queues.agent(agent, urgent=details.urgent)

    def _other_queues(self, order: Order) -> Iterable[str]:
        """Return the queues with a message that may send the request, or end the step."""
        queues, urgent = self._context.queues, order.details.urgent
        yield lane(queues.scheduler, urgent=urgent)
        yield lane(queues.replies, urgent=urgent)
        if self._order_of_callback is not None:
            yield lane(queues.callbacks, urgent=urgent)

    async def _judge(self, queue: str, scan: Scan, owner: Owner, step: StepRecord) -> Excuse | None:
        """Return the excuse that a queue gives to a step."""
        since = scan.away_since or scan.oldest.get(owner)
        beyond = since is None and scan.full
        if beyond:  # its message may lie behind those that were read
            since = min(scan.oldest.values(), default=scan.at)
        if since is None:
            return None
        await self._report(queue, scan, since, step)
        put_back = owner in scan.put_back or (beyond and scan.put_back)
        if scan.away_since is not None or put_back:
            return Excuse.AWAY
        return Excuse.WAITS if scan.moves and since < scan.at else Excuse.STUCK

    async def _scanned(self, queue: str) -> Scan:
        async with self._scanning:
            if queue not in self._scans:
                self._scans[queue] = await self._scan(queue)
            return self._scans[queue]

    async def _scan(self, queue: str) -> Scan:
        now = self._context.clock.now()
        before = self._before.get(queue)
        try:
            found = await self._context.bus.peek(queue, SCAN_MAX)
        except BusUnavailableError as away:
            log.warning("queue %s cannot be read: %s", queue, away)
            return Scan(now, {}, away_since=(before and before.away_since) or now)
        visible = [one for one in found if one.enqueued_at <= now]
        ids = frozenset(one.message_id for one in visible)
        moved_at = before.moved_at if before else None
        if before and before.ids - ids:
            moved_at = now
        oldest: dict[Owner, datetime] = {}
        put_back: set[Owner] = set()
        is_callbacks = self._is_callbacks(queue)
        for one in found:
            # Applications may send to the callbacks queue: there only a signed token counts.
            owner = self._owner_of_callback(one.body) if is_callbacks else _owner(one.body)
            if owner is not None and one.enqueued_at <= now + SOON:
                oldest[owner] = min(one.enqueued_at, oldest.get(owner, one.enqueued_at))
                if TIMES in one.properties:
                    put_back.add(owner)
        full = len(found) >= SCAN_MAX or sum(len(one.body) for one in found) >= PEEK_BYTES_MAX
        return Scan(now, oldest, frozenset(put_back), ids, full, moved_at)

    def _is_callbacks(self, queue: str) -> bool:
        callbacks = self._context.queues.callbacks
        return queue in {lane(callbacks, urgent=urgent) for urgent in (False, True)}

    def _owner_of_callback(self, body: bytes) -> Owner | None:
        if self._order_of_callback is None:
            return None
        try:
            return self._order_of_callback(body), None, None
        except MalformedError:
            return None

    async def _report(self, queue: str, scan: Scan, since: datetime, step: StepRecord) -> None:
        """Report a message that waits for long, or a queue that is away for long."""
        # The step is looked at again after as long as it has waited: until then it is not over.
        until_next = MOVES_WITHIN + min(max(scan.at - step.since, NO_TIME), REWAKE_MAX)
        waited = scan.at - since
        reported_at = self._reported_at.get(queue)
        if waited < INCIDENT_DELAY_MIN or (reported_at and scan.at - reported_at < SOON):
            return
        self._reported_at[queue] = scan.at
        text = (
            f"Messages wait {waited.total_seconds():.0f} s in queue {queue} before they are "
            "received. Nothing is lost, and steps get more time. If it lasts, check that the "
            "function of that queue runs, and that it has enough instances."
        )
        if scan.away_since is not None:
            text = (
                f"Queue {queue} cannot be read. Steps that may wait in it get more time. Check "
                "that the queue exists, that it is enabled, and that this app may read it."
            )
        incident = Incident(
            AlertKind.QUEUE_DELAY, f"queue {queue}", text, since, scan.at + until_next
        )
        try:
            await self._context.incidents.report(incident)
        except UnavailableError as down:
            log.warning("the delay of queue %s is reported later: %s", queue, down)


def _may_await(step: StepRecord) -> bool:
    """Return whether a step may await a callback. Whether an undo awaits one is not recorded.

    A step that awaits one is out longer than its calls (``sas.domain.reply.progressed``).
    """
    doing = step.process_state is StepState.PROCESSING
    return not doing or step.call.called_until != step.complete_by


def _owner(body: bytes) -> Owner | None:
    """Return what an internal message belongs to; None if it cannot be used."""
    try:
        message = msgspec.json.decode(body, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if message.kind == "request":
        return message.order_id, message.step, message.epoch
    return message.order_id, None, None
