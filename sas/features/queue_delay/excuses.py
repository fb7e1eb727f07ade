"""Excuses: a step past its CompleteBy has not failed while a message of it waits in a queue.

To the supervisor, a request that waits in a long queue looks like one whose agent crashed. If such
a wait counted, a burst of orders would undo healthy orders, and each reset would add one more
request to the same queue. So before a timeout counts, the supervisor looks into the queues of that
step, and only into those: another queue neither excuses it nor fails it.

1. **The agent's queue.** If the request itself waits there, the agent had no time: that decides.
   So it does if the queue cannot be read.
2. **The scheduler's queue of the step's lane.** The wake, the reply or the callback may wait there.
   If it does, or may lie behind the messages that were read, the step is excused too.
3. **The root of a chain.** The order runs on within the function of an earlier message
   (``sas.engine.run_on``): its submission, or a request that was answered. While that message is in
   its queue, a function works on the order, or was killed, and the message is redelivered and sends
   the request. Only a message that was read excuses: such a queue may be long for other reasons.
4. **The best excuse wins.** A queue from which messages leave, or one that cannot be read, excuses
   without limit. Three others excuse only so many times, or an order could wait for ever without a
   failure: a queue that does not move, because perhaps no function reads it; a queue of orders,
   because any application can write another's order id into a message; and a queue that is not long
   and yet cannot be read to its end, because what comes much later lies in front. The last excuses
   no step whose request is older than the last message that was read and waits. The next read
   begins behind what lies in front (``sas.features.queue_delay.front``).
5. **Report.** A long wait is an incident, so the operator learns of it while nothing is counted.
   The sweeps read that queue until nothing waits long in it. Then the incident is over.

So load alone fails no step: while a message of the step waits in a queue that moves, its CompleteBy
moves on with the same epoch, and no second request makes that queue longer. Each queue is read once
a sweep. What an instance remembers of earlier sweeps only tells whether a queue moves. If it dies,
the next one sees that after two sweeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from sas.codec.internal import Kind
from sas.domain.change import Incident
from sas.domain.expire import Excuse
from sas.domain.messages import AlertKind
from sas.domain.order import Order, StepRecord, StepState
from sas.domain.queues import lane, scope_of
from sas.domain.workflow import UnknownWorkflowError, Workflows
from sas.engine.context import Context
from sas.engine.receiver import TIMES
from sas.features.queue_delay import front, rules
from sas.features.queue_delay.front import QueueFront
from sas.features.queue_delay.rules import Owner, Scan, Seen
from sas.ports import PEEK_BYTES_MAX, BusUnavailableError, UnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)


class _Envelope(msgspec.Struct, kw_only=True):
    """What a message belongs to. A submission has no kind. Other members do not matter here."""

    order_id: str
    kind: str = ""
    step: int | None = None
    epoch: int | None = None


class QueueExcuses:
    """See ``sas.engine.hooks.Excuses``. A message that waits for ``delay_min`` is an incident."""

    def __init__(self, context: Context, workflows: Workflows, delay_min: timedelta) -> None:
        self._context = context
        self._front = QueueFront(context.bus, context.clock)
        self._delay_min = delay_min
        self._workflows = workflows
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
        agent_queue = self._request_queue(order, step)
        if agent_queue is None:
            return None
        request = (order.order_id, step.number, step.epoch)
        scan = await self._scanned(agent_queue)  # 1. The agent's queue.
        sent_at = self._sent_at(order, step)
        excuses = [await self._excuse(agent_queue, scan, request, step, sent_at=sent_at)]
        if rules.is_decided(scan, request):
            return excuses[0]
        owner = (order.order_id, None, None)
        queue = lane(self._context.queues.scheduler, urgent=order.details.urgent)
        scan = await self._scanned(queue)  # 2. The scheduler's queue.
        excuses.append(await self._excuse(queue, scan, owner, step))
        for queue, root in self._roots(order):  # 3. The root of a chain.
            scan = await self._scanned(queue)
            if root in scan.oldest:
                excuse = await self._excuse(queue, scan, root, step)
                is_claim = self._context.queues.takes_orders(queue)
                excuses.append(Excuse.STUCK if is_claim else excuse)
        return rules.best_of(excuses)  # 4. The best excuse wins.

    async def incidents(self) -> tuple[list[Incident], list[tuple[AlertKind, str]]]:
        """Return no incidents, and the names of those that this instance reported and that ended.

        See ``sas.features.incidents.board.HealthCheck``.
        """
        ended: list[tuple[AlertKind, str]] = []
        for queue in list(self._reported_at):
            if rules.is_short(await self._scanned(queue), self._delay_min):
                del self._reported_at[queue]
                ended.append((AlertKind.QUEUE_DELAY, scope_of(queue)))
        return [], ended

    def _request_queue(self, order: Order, step: StepRecord) -> str | None:
        """Return the queue of the agent that was asked; None if the workflow is not deployed."""
        details = order.details
        try:
            workflow = self._workflows.find(details.workflow, details.version)
        except UnknownWorkflowError:
            return None
        agent = workflow.steps[step.number].agents[step.call.route]
        return self._context.queues.agent(agent, urgent=details.urgent)

    def _sent_at(self, order: Order, step: StepRecord) -> datetime:
        workflow = self._workflows.find(order.details.workflow, order.details.version)
        return rules.last_send(step, workflow.rules.steps[step.number])

    def _roots(self, order: Order) -> Iterable[tuple[str, Owner]]:
        """Return the queues that may hold the root of a chain, each with its message's owner."""
        orders = self._context.queues.orders_for(order.order_id)
        yield lane(orders, urgent=order.details.urgent), (order.order_id, None, None)
        for step in order.steps:
            answered = 0
            if not step.dispatched:
                answered = step.epoch
            elif step.process_state is StepState.COMPENSATING:  # its undo runs on from its refusal
                answered = step.epoch - 1
            queue = self._request_queue(order, step)
            if answered and queue is not None:
                yield queue, (order.order_id, step.number, answered)

    async def _excuse(
        self,
        queue: str,
        scan: Scan,
        owner: Owner,
        step: StepRecord,
        *,
        sent_at: datetime | None = None,
    ) -> Excuse | None:
        """Return the excuse that a queue gives to a step, and report a long delay."""
        since = rules.waits_since(scan, owner, sent_at)
        if since is not None:
            await self._report(queue, scan, since, step)  # 5. Report.
        return rules.excuse_of(scan, owner, sent_at)

    async def _scanned(self, queue: str) -> Scan:
        async with self._scanning:
            if queue not in self._scans:
                self._scans[queue] = await self._scan(queue)
            return self._scans[queue]

    async def _scan(self, queue: str) -> Scan:
        now = self._context.clock.now()
        before = self._before.get(queue)
        try:
            messages = await self._front.read(queue)
        except BusUnavailableError as error:
            log.warning("queue %s cannot be read: %s", queue, error)
            return rules.away_scan(before, now)
        waiting = [
            Seen(
                message_id=message.message_id,
                enqueued_at=message.enqueued_at,
                owner=_owner(message.body),
                put_back=TIMES in message.properties,
            )
            for message in messages
        ]
        size = sum(message.size for message in messages)
        full = len(messages) >= front.SCAN_MAX or size >= PEEK_BYTES_MAX
        return rules.scan_of(waiting, before, now, full=full)

    async def _report(self, queue: str, scan: Scan, since: datetime, step: StepRecord) -> None:
        """Report a message that waits for long, or a queue that is away for long."""
        incident = rules.incident_of(
            queue,
            scan,
            since=since,
            step=step,
            reported_at=self._reported_at.get(queue),
            delay_min=self._delay_min,
        )
        if incident is None:
            return
        self._reported_at[queue] = scan.at
        try:
            await self._context.incidents.report(incident)
        except UnavailableError as error:
            log.warning("the delay of queue %s is reported later: %s", queue, error)


def _owner(body: bytes) -> Owner | None:
    """Return what an internal message belongs to; None if it cannot be used."""
    try:
        message = msgspec.json.decode(body, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if message.kind == Kind.REQUEST:
        return message.order_id, message.step, message.epoch
    return message.order_id, None, None
