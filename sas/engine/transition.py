"""The one loop behind every transition: load, decide, commit, send.

The transaction itself guards the cause: it creates the cause row, so a rival that acted on the same
message makes the commit fail. The loop looks for a recorded cause only if there was nothing to
decide or the commit failed, and only *after* it loaded the order. If the cause is absent then, it
was also absent from the loaded order.

The other way round would lose messages. Handler A looks for the cause, and it is absent. Handler B
of the same message commits, and dies before it sends. A loads the order, finds nothing to decide,
and completes the message: nobody sends what B recorded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from uuid import uuid4

from sas.domain.change import Change, Decision, Origin, OutDue, next_change
from sas.domain.order import Order
from sas.domain.workflow import UnknownWorkflowError, Workflow
from sas.engine.context import Context
from sas.engine.outbox import OUT_AGAIN_AFTER
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


@dataclass(frozen=True, slots=True)
class Source:
    """Where a transition comes from and who makes it, for the journal.

    ``cause`` is the message; None for a timer. A timer has no redelivery, so each of its
    transitions leaves an out row until its messages are sent. ``external_sent``: see ``Delivery``.
    ``seq`` is the journal seq at which the message was sent: an order that this process kept since
    then needs no read. None: the order is always read. ``reason`` is given by an operator.
    """

    cause: str | None
    by: str | Callable[[Order], str]
    external_sent: bool = field(default=False, kw_only=True)
    seq: int | None = field(default=None, kw_only=True)
    reason: str = field(default="", kw_only=True)

    def change(self, order: Order, decision: Decision, at: datetime) -> Change:
        """Return the change that commits a decision."""
        by = self.by(order) if callable(self.by) else self.by
        out_at = at + OUT_AGAIN_AFTER if self.cause is None else None
        origin = Origin(by=by, commit_id=uuid4().hex, cause=self.cause, at=at, reason=self.reason)
        return next_change(order, decision, origin, out_at)


Decide = Callable[[Order, datetime], Decision | None]
"""Given a loaded order and the time: the decision; None if there is nothing to do."""
Propose = Callable[[Order | None, datetime], Change | None]
"""The same, but returns the change itself. The order is None if it does not exist."""


class TransitionRunner:
    """Commits decisions about stored orders and sends their messages.

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

    async def apply(self, order_id: str, source: Source, decide: Decide) -> ApplyResult:
        """Let ``decide`` decide about an order. Each cause is acted on once.

        Raises:
            ContentionError, StoreUnavailableError, BusUnavailableError: put the message back.
            OtherVersionError: this instance does not have the order's workflow.
        """

        def propose(order: Order | None, now: datetime) -> Change | None:
            decision = decide(order, now) if order is not None else None
            return source.change(order, decision, now) if order and decision else None

        return await self.run(order_id, source, propose)

    async def run(
        self, order_id: str, source: Source, propose: Propose, *, expect_new: bool = False
    ) -> ApplyResult:
        """Load, decide, commit, send. Start again if a rival committed first.

        If this process committed the order last, the first attempt uses the order that it kept. A
        refused commit, or nothing to decide, shows that the kept order is old: then it is loaded.

        ``expect_new``: the first attempt reads nothing and assumes that no order exists. Raises
        as ``apply``, and what ``propose`` raises.
        """
        if await self._decided_by_kept(order_id, source, propose):
            return ApplyResult.COMMITTED
        for attempt in range(CONFLICTS_MAX):
            blind = expect_new and attempt == 0
            order = None if blind else await self._context.load(order_id)
            try:
                change = propose(order, self._context.clock.now())
            except UnknownWorkflowError as lacks:
                raise OtherVersionError(f"order {order_id} waits for a deploy: {lacks}") from None
            if change is None:
                if order is None:
                    return ApplyResult.UNKNOWN_ORDER
                repeated = await self._repeated(order, source)
                return ApplyResult.REPEATED if repeated else ApplyResult.NOTHING
            with self._span(change.after):
                if change.incident is not None:
                    await self._context.incidents.report(change.incident, order_id)
                if await self._committed(change):
                    return ApplyResult.COMMITTED
            if order is not None and await self._repeated(order, source):
                return ApplyResult.REPEATED
            if not blind:
                await self._context.clock.sleep(backoff(attempt))
        raise ContentionError(
            f"order {order_id}: other instances won {CONFLICTS_MAX} attempts; put its message back"
        )

    async def _decided_by_kept(self, order_id: str, source: Source, propose: Propose) -> bool:
        """Decide about the order that this process kept; False if it must be loaded."""
        if source.seq is None:
            return False
        order = self._context.kept.find(order_id, source.seq)
        if order is None:
            return False
        try:
            change = propose(order, self._context.clock.now())
        except UnknownWorkflowError:
            return False
        if change is None or change.incident is not None:  # an old order must report nothing
            return False
        with self._span(change.after):
            return await self._committed(change)

    async def repeat(self, order: Order, cause: str, *, outside: bool = True) -> bool:
        """Send the messages of a recorded cause again; False if the cause is not recorded.

        ``outside``: alerts and notifications too.
        """
        entry = await self._context.store.recorded(order.order_id, cause)
        if entry is None:
            return False
        if entry.messages:
            fresh = await self._context.load(order.order_id) or order
            workflow = self._known_workflow(fresh)
            await self._context.outbox.send(fresh, entry, workflow, outside=outside)
        return True

    async def _repeated(self, order: Order, source: Source) -> bool:
        if source.cause is None:
            return False
        return await self.repeat(order, source.cause, outside=not source.external_sent)

    def _known_workflow(self, order: Order) -> Workflow | None:
        """Return an order's workflow; None if this deployment no longer has it.

        Then the recorded messages are sent without the requests. The steps of those requests
        expire, and the supervisor reports the missing workflow.
        """
        if self._workflow_of is None:
            return None
        try:
            return self._workflow_of(order)
        except UnknownWorkflowError as unknown:
            log.warning("order %s: sent again without its requests: %s", order.order_id, unknown)
            return None

    async def _committed(self, change: Change) -> bool:
        """Commit and send; False if a rival committed first."""
        entry = change.entry
        try:
            order = await self._context.commit(await self._offloaded(change))
        except ConflictError:
            log.info("order %s: another instance won seq %s", change.after.order_id, entry.seq)
            return False
        if entry.messages:
            workflow = None if self._workflow_of is None else self._workflow_of(order)
            out = OutDue(change.out_at, order.order_id, entry.seq) if change.out_at else None
            await self._context.outbox.send(order, entry, workflow, out)
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
