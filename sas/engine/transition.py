"""The thin shell around every decision: load, decide, commit, send, return.

The cause of a transition is guarded by the transaction itself: the cause row is created
in it, so a rival that acted upon the same message makes the commit fail. The journal is
asked for the cause only where nothing is left to decide or the commit failed, *after*
the order was loaded: a cause absent then was absent in what was loaded (docs/adr/0002).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from uuid import uuid4

from sas.domain.change import Change, Decision, next_change
from sas.domain.order import Order
from sas.domain.workflow import UnknownWorkflowError, Workflow
from sas.engine.context import Context
from sas.ports import ConflictError
from sas.telemetry.tracing import logger

log = logger(__name__)


CONFLICTS_MAX = 12


class ApplyResult(Enum):
    """What came of a message or a due row."""

    COMMITTED = "committed"
    REPEATED = "repeated"
    """Its cause was recorded already: the recorded messages were sent again."""
    NOTHING = "nothing"
    """A late, repeated or stray message: nothing follows from it."""
    UNKNOWN_ORDER = "unknown order"


class ContentionError(Exception):
    """Rivals won every time; let the message come again."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What a transition comes from and who makes it, for the journal."""

    cause: str
    by: str


Decide = Callable[[Order, datetime], Decision | None]
"""Given a loaded order and the time, what follows."""


class TransitionRunner:
    """Makes decisions upon stored orders come true."""

    def __init__(self, context: Context, workflow_of: Callable[[Order], Workflow]) -> None:
        self._context = context
        self._workflow_of = workflow_of

    async def act(self, order_id: str, source: Cause, decide: Decide) -> ApplyResult:
        """Let ``decide`` decide upon an order, once per cause whatever comes twice.

        Raises:
            ContentionError, StoreUnavailableError, BusUnavailableError: let it come again.
            UnknownWorkflowError: this deployment does not have the order's workflow.
        """
        for attempt in range(CONFLICTS_MAX):
            order = await self._context.store.load(order_id)
            if order is None:
                return ApplyResult.UNKNOWN_ORDER
            now = self._context.clock.now()
            decision = decide(order, now)
            if decision is None:
                return await self.repeat(order, source.cause) or ApplyResult.NOTHING
            change = next_change(
                order, decision, by=source.by, commit_id=uuid4().hex, cause=source.cause, at=now
            )
            if decision.condition is not None:
                await self._context.conditions.met(decision.condition, order_id)
                await self._context.conditions.note_now_and_then()
            if await self._committed(change):
                return ApplyResult.COMMITTED
            if await self.repeat(order, source.cause):
                return ApplyResult.REPEATED
            await self._context.clock.sleep(backoff(attempt))
        raise ContentionError(f"order {order_id}: rivals won {CONFLICTS_MAX} times; it comes again")

    async def repeat(self, order: Order, cause: str) -> ApplyResult | None:
        """Send again what a recorded cause led to; None where it is not recorded."""
        entry = await self._context.store.recorded(order.order_id, cause)
        if entry is None:
            return None
        if not entry.messages:
            return ApplyResult.REPEATED
        fresh = await self._context.store.load(order.order_id) or order
        await self._context.outbox.send(fresh, entry, self._known_workflow(fresh))
        return ApplyResult.REPEATED

    def _known_workflow(self, order: Order) -> Workflow | None:
        """Return an order's workflow, or None where this deployment has it no longer.

        What was recorded is then sent without its requests: their steps expire, and the
        supervisor says that the workflow is missing.
        """
        try:
            return self._workflow_of(order)
        except UnknownWorkflowError as unknown:
            log.warning("order %s: repeated without its requests: %s", order.order_id, unknown)
            return None

    async def _committed(self, change: Change) -> bool:
        try:
            order = await self._context.commit(change)
        except ConflictError:
            log.info("order %s: a rival won seq %s", change.after.order_id, change.entry.seq)
            return False
        await self._context.outbox.send(order, change.entry, self._workflow_of(order))
        return True


def backoff(attempt: int) -> float:
    """Return how long to wait after a conflict, in seconds: growing, with full jitter."""
    return random.uniform(0, min(0.02 * 2**attempt, 1.0))  # noqa: S311  jitter, no secret
