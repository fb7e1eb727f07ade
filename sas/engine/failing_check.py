"""A bug in the check of an order: the order waits for the deploy that mends it.

A check refuses an order by ValueError. Any other error of it says nothing about the order. So the
order's message is put back with growing pauses, and one incident names the error and its line. The
copy carries this text, and ``sas show`` reads it.
"""

from __future__ import annotations

from datetime import timedelta

from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.domain.order import AttemptError
from sas.engine.context import Context
from sas.engine.delivery import BUG, BUG_LENGTH_MAX, LEFT_SINCE
from sas.engine.explained import explained
from sas.ports import Business, UnavailableError
from sas.telemetry.tracing import logger

log = logger(__name__)


class FailingCheckError(UnavailableError):
    """The check of a saga has a bug. ``explanation`` names the error and its line.

    The text is for logs. It leaves out the text of the error, which may quote the order.
    """

    delay_max_s = AttemptError.PAUSE_MAX.total_seconds()

    def __init__(self, saga: str, error: Exception) -> None:
        super().__init__(f"the check of saga {saga} fails with {type(error).__name__}")
        self._scope = _scope(saga)
        self.explanation = f"the {self._scope} fails: {explained(error, BUG_LENGTH_MAX)}"
        # The wait for an instance that has the workflow is over: this one has it.
        self.put_back_with = {BUG: self.explanation, LEFT_SINCE: ""}

    async def report(self, context: Context, order_id: str) -> None:
        """Report the incident. If that fails, the next delivery does it."""
        now = context.clock.now()
        incident = Incident(
            kind=AlertKind.AGENT_FAILING,
            scope=self._scope,
            text=f"{self.explanation[0].upper()}{self.explanation[1:]}. Deploy a mended version. "
            "The orders wait, and are tried again at least every five minutes. None is refused "
            "meanwhile, and none must be submitted again.",
            since=now,
            until=now + timedelta(seconds=self.delay_max_s) + AttemptError.PAUSE_MAX,
        )
        try:
            await context.incidents.report(incident, order_id)
        except UnavailableError as outage:
            log.warning("%s: its alert is sent later: %s", self, outage)


def _scope(saga: str) -> str:
    return f"check of saga {saga}"


def check_order(business: Business, saga: tuple[str, int], content: bytes) -> None:
    """Have the business check the content of an order. ``saga`` is its name and version.

    Raises:
        ValueError: the check refuses the order.
        FailingCheckError: the check has a bug.
    """
    check = business.checks.get(saga)
    if check is None:
        return
    try:
        check(content)
    except ValueError:
        raise
    except Exception as error:  # noqa: BLE001  an adopter's code raises anything
        # Not chained: a traceback in a log would quote the text of the error.
        raise FailingCheckError(saga[0], error) from None
