"""Looks for what is wrong with the system itself: breakers not closed, queues far behind."""

from __future__ import annotations

from datetime import timedelta

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.engine.context import Context
from sas.features.circuit_breaker import guard
from sas.features.queue_delay.rules import FRESH, QueueDelay
from sas.ports import StoreUnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)


WORTH_TELLING = timedelta(minutes=1)
"""How far behind a queue must be before the operator is told of it."""


async def check_health(context: Context) -> None:
    """Note the conditions that stand; once a minute where nothing was met.

    Where the store or the bus is down it waits for the next time.
    """
    board = context.conditions
    if board.noted_lately and not board.seen_any:
        return
    try:
        standing, over = await guard.incidents_of(context)
    except StoreUnavailableError as down:
        log.warning("breakers are looked at later: %s", down)
        return
    await context.lags.look()
    standing += [_behind(queue, lag) for queue, lag in context.lags.fresh.items() if _is_far(lag)]
    for condition in standing:
        board.saw(condition)
    await board.note(over)


def _is_far(lag: QueueDelay) -> bool:
    return lag.delay >= WORTH_TELLING


def _behind(queue: str, lag: QueueDelay) -> Incident:
    text = (
        f"Messages lie {lag.delay.total_seconds():.0f} s in queue {queue} before they are taken "
        "up. Nothing is lost, and steps are given more time for it. If it lasts, see whether the "
        "function of that queue has instances enough."
    )
    return Incident(AlertKind.BEHIND, f"queue {queue}", text, lag.at, lag.at + FRESH)
