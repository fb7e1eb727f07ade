"""The one loop behind every transition: load, decide, commit, send.

Every actor that changes an order does it here: submission, scheduler, supervisor, operator, dead
letters, callbacks. The actor gives a function that decides; the loop does the rest.

1. **The kept order.** If this process committed the order last, it still has it, and decides about
   that one without a read. This is how most messages go. The kept order may be old, because another
   instance may have changed the stored one. Then the commit is refused by the ETag, and the loop
   goes on at 2. It goes on at 2, too, if there is nothing to decide: an old order must never be the
   reason to do nothing.
2. **Load.** The order is read from the store, with its ETag.
3. **Decide.** A pure function returns a ``Decision``: new steps, messages to send, a word for the
   journal. Or it returns None, because the message is late, repeated, or of no meaning now.
4. **Commit.** One transaction writes the steps, the journal row, the due rows, and the cause row.
   The ETag of the state row guards it, so of two instances that decide at the same time one wins.
   The loser begins again at 2.
5. **Send.** The messages that the journal row names are sent, or handled at once by an actor of
   this process (``sas.engine.run_on``). Only then does the host complete the message that was the
   cause.
6. **Nothing to decide, or the commit was refused: was this cause recorded before?** If so, an
   earlier delivery of the same message committed, and perhaps died before it sent, or while it ran
   on. What was recorded since and neither handled nor sent is sent now, with the same ids
   (``repeat``). There is no second decision.

What can go wrong at each point, and why nothing is lost:

* A crash before 4 changes nothing. The message is redelivered, and all begins anew.
* A crash in 4 leaves all of the transaction or nothing of it.
* A crash between 4 and 5 leaves a journal row whose messages were not sent. The message that was
  the cause was not completed, so it is redelivered. The redelivery gets to 6 and sends them.
* A crash in or after 5 sends some of them again, with the same ids. Each receiver is guarded
  against that: internal queues by cause rows, the others by duplicate detection or by the id.
* A timer is never redelivered. So a change of the supervisor also writes an out row (``OutDue``),
  and removes it after 5. The next sweep finds an out row that stayed, and sends.

**Why 6 comes after 2, and never before it.** Suppose that it came first. Two handlers have the same
message, because its lock ran out::

    handler A                          handler B, of the same message
    ---------                          ------------------------------
    the cause is not recorded
                                       commits the transition, with the cause
                                       dies before it sends
    loads the order: B's change
    is in it, nothing is to be decided
    completes the message              <- nobody sends what B recorded

In the order used here, A loads first and looks for the cause last::

    handler A                          handler B, of the same message
    ---------                          ------------------------------
    loads the order
                                       commits the transition, with the cause
                                       dies before it sends
    decides: nothing, or is refused
    the cause *is* recorded            <- A sends what B recorded

The argument in one sentence: **if the cause is absent when A looks, it was also absent from the
order that A loaded before**, because a cause is never removed while its order lives. So A decided
about an order on which this message had not acted yet. If there was nothing to decide then, the
message truly has no meaning. If the cause is present, somebody acted on it already, and only the
sending may be missing.

No look for the cause is needed before a commit: the transaction *creates* the cause row. If a rival
acted on the same message, that row exists, and the commit is refused.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from enum import Enum
from uuid import uuid4

from sas.domain.change import Change, Decision, OutDue, Trigger, change_of
from sas.domain.ids import cause_of, message_id
from sas.domain.messages import JournalEntry, Outgoing, Request, Wake
from sas.domain.order import Order
from sas.domain.workflow import UnknownWorkflowError, Workflow
from sas.engine.context import Context
from sas.ports import ConflictError, OtherVersionError, UnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)
CONFLICTS_MAX = 12


class ApplyResult(Enum):
    """What followed from a message or a due row."""

    COMMITTED = "committed"
    REPEATED = "repeated"
    """Its cause was recorded before: the recorded messages were sent again."""
    NOTHING = "nothing"
    """The message is late or repeated: nothing follows from it."""
    UNKNOWN_ORDER = "unknown order"


class ContentionError(UnavailableError):
    """Other instances won every attempt. The message is put back."""


Decide = Callable[[Order | None, datetime], Decision | None]
"""Given an order (None if it does not exist) and the time: the decision, or None for nothing."""


class TransitionRunner:
    """Commits decisions about orders and sends their messages.

    ``workflow_of`` is None for actors that know no workflow: they send no requests. ``span`` opens
    a trace span for the commit and the sends of one order.
    """

    def __init__(
        self,
        context: Context,
        workflow_of: Callable[[Order], Workflow] | None,
        span: Callable[[Order], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._context = context
        self._workflow_of = workflow_of
        self._span = span

    async def run(
        self, order_id: str, trigger: Trigger, decide: Decide, *, expect_new: bool = False
    ) -> ApplyResult:
        """Let ``decide`` decide about an order. Each cause is acted on once.

        ``expect_new``: the first attempt reads nothing and assumes that no order exists.

        Raises:
            ContentionError, StoreUnavailableError, BusUnavailableError: put the message back.
            OtherVersionError: this instance does not have the order's workflow.
            Exception: what ``decide`` raises.
        """
        # 1. The kept order.
        if await self._decided_by_kept(order_id, trigger, decide):
            return ApplyResult.COMMITTED
        for attempt in range(CONFLICTS_MAX):
            # 2. Load.
            blind = expect_new and attempt == 0
            order = None if blind else await self._context.load(order_id)
            # 3. Decide.
            try:
                change = self._change(order, trigger, decide)
            except UnknownWorkflowError as error:
                text = f"order {order_id} waits for a deploy: {error}"
                raise OtherVersionError(text, *_workflow_of(order)) from None
            if change is None and order is None:
                return ApplyResult.UNKNOWN_ORDER
            # 4 and 5. Commit and send.
            if change is not None and await self._reported_and_committed(change):
                return ApplyResult.COMMITTED
            # 6. Was this cause recorded before?
            if order is not None and await self._repeated(order, trigger):
                return ApplyResult.REPEATED
            if change is None:
                return ApplyResult.NOTHING
            if not blind:
                await self._context.clock.sleep(backoff(attempt))
        raise ContentionError(
            f"order {order_id}: other instances won {CONFLICTS_MAX} attempts; put its message back"
        )

    async def repeat(
        self, order_id: str, cause: str, *, external: bool = True, whole: bool = False
    ) -> bool:
        """Send what follows from a recorded cause; False if the cause is not recorded.

        The handler that recorded it may have run on, and died anywhere after that. So this walks
        the journal from the row of the cause. If a message of a row was handled, the walk goes on
        in the row that it led to. If not, it is sent. The alerts and notifications of each row are
        sent again; ``external`` is False if those of the first row were sent for certain.

        Raises:
            OtherVersionError: ``whole``, and this instance does not have the order's workflow.
        """
        entry = await self._context.store.recorded(order_id, cause)
        order = await self._context.load(order_id) if entry is not None else None
        if entry is None or order is None:
            return False
        workflow = self._known_workflow(order)
        if whole and workflow is None:
            raise OtherVersionError(f"order {order_id} waits for a deploy that has its workflow")
        entries, seqs = deque([entry]), {entry.seq}
        while entries:
            entry = entries.popleft()
            handled: set[str] = set()
            for index, item in enumerate(entry.messages):
                own_id = message_id(order_id, entry.seq, index)
                following = await self._following(order_id, item, own_id)
                if following is not None:
                    handled.add(own_id)
                if following is not None and following.seq not in seqs:  # rows that were changed
                    seqs.add(following.seq)
                    entries.append(following)
            await self._context.outbox.send(
                order, entry, workflow, external=external, handled=handled
            )
            external = True
        return True

    async def _following(self, order_id: str, item: Outgoing, own_id: str) -> JournalEntry | None:
        """Return the journal row that a message led to; None if it led to none."""
        match item:
            case Wake():
                cause = cause_of(self._context.queues.scheduler, own_id)
            case Request():
                cause = self._context.reply_cause(
                    order_id, item.step, item.direction.value, item.epoch
                )
            case _:
                return None
        return await self._context.store.recorded(order_id, cause)

    async def _decided_by_kept(self, order_id: str, trigger: Trigger, decide: Decide) -> bool:
        """Decide about the order that this process kept; False if it must be loaded."""
        if trigger.seq is None:
            return False
        order = self._context.kept_orders.find(order_id, trigger.seq)
        if order is None:
            return False
        try:
            change = self._change(order, trigger, decide)  # 3.
        except UnknownWorkflowError:
            return False
        if change is None or change.incident is not None:  # an old order must report nothing
            return False
        with self._span(change.after):
            return await self._committed(change)

    def _change(self, order: Order | None, trigger: Trigger, decide: Decide) -> Change | None:
        now = self._context.clock.now()
        decision = decide(order, now)
        if decision is None:
            return None
        return change_of(order, decision, trigger, commit_id=uuid4().hex, now=now)

    async def _repeated(self, order: Order, trigger: Trigger) -> bool:
        if trigger.cause is None:
            return False
        return await self.repeat(order.order_id, trigger.cause, external=not trigger.external_sent)

    def _known_workflow(self, order: Order) -> Workflow | None:
        """Return an order's workflow; None if this deployment no longer has it.

        Then the recorded messages are sent without the requests. The steps of those requests
        expire, and the supervisor reports the missing workflow.
        """
        if self._workflow_of is None:
            return None
        try:
            return self._workflow_of(order)
        except UnknownWorkflowError as error:
            log.warning("order %s: sent again without its requests: %s", order.order_id, error)
            return None

    async def _reported_and_committed(self, change: Change) -> bool:
        """Report the incident of a change, if it has one, and commit it as ``_committed`` does."""
        with self._span(change.after):
            if change.incident is not None:
                await self._context.incidents.report(change.incident, change.after.order_id)
            return await self._committed(change)

    async def _committed(self, change: Change) -> bool:
        """Commit and send; False if a rival committed first."""
        entry = change.entry
        # 4. Commit.
        try:
            order = await self._context.commit(await self._offloaded(change))
        except ConflictError:
            log.info("order %s: another instance won seq %s", change.after.order_id, entry.seq)
            return False
        # 5. Send.
        if entry.messages:
            workflow = None if self._workflow_of is None else self._workflow_of(order)
            out = OutDue(change.out_at, order.order_id, entry.seq) if change.out_at else None
            await self._context.outbox.send(order, entry, workflow, out)
        if change.ended is not None:
            with suppress(UnavailableError):  # it ends later
                await self._context.incidents.end(*change.ended)
        return True

    async def _offloaded(self, change: Change) -> Change:
        """Return a change whose new payload is offloaded if it is large.

        Content is written before the transaction that refers to it, and after the order was loaded.
        So a purge in between makes the commit fail, and never removes content that is in use.
        """
        details = change.after.details
        if change.before is not None and change.before.details == details:
            return change
        details = await self._context.content.offload_payload(details)
        return replace(change, after=replace(change.after, details=details))


def backoff(attempt: int) -> float:
    """Return the pause after a conflict, in seconds: growing, with full jitter."""
    return random.uniform(0, min(0.02 * 2**attempt, 1.0))  # noqa: S311  jitter, no secret


def _workflow_of(order: Order | None) -> tuple[str, ...]:
    """Return what an incident says of the workflow that is missing, as a sweep names it."""
    return (f"{order.details.workflow} version {order.details.version}",) if order else ()
