"""Excuses: a step past its CompleteBy has not failed while a message of it waits in a queue.

To the supervisor, a request that waits in a long queue looks like one whose agent crashed. If such
a wait counted, a burst of orders would undo healthy orders, and each reset would add one more
request to the same queue. So before a timeout counts, the supervisor looks into the queues of that
step, and only into those: another queue neither excuses it nor fails it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime

import msgspec

from sas.codec.internal import Kind
from sas.domain.expire import Excuse
from sas.domain.order import Order, StepRecord
from sas.domain.queues import lane
from sas.domain.workflow import UnknownWorkflowError, Workflows
from sas.engine.context import Context
from sas.engine.receiver import TIMES
from sas.features.queue_delay import rules
from sas.features.queue_delay.rules import Owner, Scan, Seen
from sas.ports import PEEK_BYTES_MAX, BusUnavailableError, UnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)
SCAN_MAX = 1_000
"""Most messages of one queue that a sweep reads. Large ones are fewer: see ``MessageBus.peek``."""


class _Envelope(msgspec.Struct, kw_only=True):
    """What an internal message belongs to. Its other members do not matter here."""

    kind: str
    order_id: str
    step: int | None = None
    epoch: int | None = None


class QueueExcuses:
    """See ``sas.engine.hooks.Excuses``. ``callbacks``: whether callbacks are on."""

    def __init__(self, context: Context, workflows: Workflows, *, callbacks: bool) -> None:
        self._context = context
        self._workflows = workflows
        self._callbacks = callbacks
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
        excuses = [await self._excuse(own, scan, request, step)]
        if rules.is_decided(scan, request):
            return excuses[0]
        owner = (order.order_id, None, None)
        for queue in self._other_queues(order):
            scan = await self._scanned(queue)
            if rules.counts(scan, owner, step, callbacks=self._is_callbacks(queue)):
                excuses.append(await self._excuse(queue, scan, owner, step))
        return rules.best_of(excuses)

    def _request_queue(self, order: Order, step: StepRecord) -> str | None:
        """Return the queue of the agent that was asked; None if the workflow is not deployed."""
        details = order.details
        try:
            workflow = self._workflows.find(details.workflow, details.version)
        except UnknownWorkflowError:
            return None
        agent = workflow.steps[step.number].agents[step.call.route]
        return self._context.queues.agent(agent, urgent=details.urgent)

    def _other_queues(self, order: Order) -> Iterable[str]:
        """Return the queues with a message that may send the request, or end the step."""
        queues, urgent = self._context.queues, order.details.urgent
        yield lane(queues.scheduler, urgent=urgent)
        yield lane(queues.replies, urgent=urgent)
        if self._callbacks:
            yield lane(queues.callbacks, urgent=urgent)

    async def _excuse(
        self, queue: str, scan: Scan, owner: Owner, step: StepRecord
    ) -> Excuse | None:
        """Return the excuse that a queue gives to a step, and report a long delay."""
        since = rules.waits_since(scan, owner)
        if since is not None:
            await self._report(queue, scan, since, step)
        return rules.excuse_of(scan, owner)

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
            return rules.away_scan(before, now)
        seen = [
            Seen(
                message_id=one.message_id,
                enqueued_at=one.enqueued_at,
                owner=_owner(one.body),
                put_back=TIMES in one.properties,
            )
            for one in found
        ]
        full = len(found) >= SCAN_MAX or sum(len(one.body) for one in found) >= PEEK_BYTES_MAX
        return rules.scan_of(seen, before, now, full=full)

    def _is_callbacks(self, queue: str) -> bool:
        callbacks = self._context.queues.callbacks
        return queue in {lane(callbacks, urgent=urgent) for urgent in (False, True)}

    async def _report(self, queue: str, scan: Scan, since: datetime, step: StepRecord) -> None:
        """Report a message that waits for long, or a queue that is away for long."""
        incident = rules.incident_of(
            queue, scan, since=since, step=step, reported_at=self._reported_at.get(queue)
        )
        if incident is None:
            return
        self._reported_at[queue] = scan.at
        try:
            await self._context.incidents.report(incident)
        except UnavailableError as down:
            log.warning("the delay of queue %s is reported later: %s", queue, down)


def _owner(body: bytes) -> Owner | None:
    """Return what an internal message belongs to; None if it cannot be used."""
    try:
        message = msgspec.json.decode(body, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if message.kind == Kind.REQUEST:
        return message.order_id, message.step, message.epoch
    return message.order_id, None, None
