"""The workflows of this business, as data."""

from __future__ import annotations

from datetime import timedelta

from sas import OnFailure, Step, Undo, Workflow, Workflows


def workflows(time_allowed: timedelta = timedelta(seconds=30)) -> Workflows:
    """Return the workflows. ``time_allowed`` holds for each step and for each undo."""
    return Workflows([_order(time_allowed), _with_care(time_allowed), _delivered(time_allowed)])


def _order(time: timedelta) -> Workflow:
    """One step after another. A failed order is undone."""
    undo = Undo(time)
    return Workflow(
        name="order",
        version=1,
        steps=(
            Step("reserve-stock", agent="inventory", time_allowed=time, undo=undo),
            Step("take-payment", agent="payment", time_allowed=time, undo=undo),
            Step("ship", agent="shipping", time_allowed=time, undo=undo),
        ),
        on_failure=OnFailure.UNDO,
    )


def _with_care(time: timedelta) -> Workflow:
    """Reserve and charge in parallel, then ship. A failed order waits in Error for an operator.

    Its application is notified of each step that took effect.
    """
    undo = Undo(time)
    return Workflow(
        name="order-with-care",
        version=1,
        steps=(
            Step("reserve-stock", agent="inventory", time_allowed=time, after=(), undo=undo),
            Step("take-payment", agent="payment", time_allowed=time, after=(), undo=undo),
            Step(
                "ship",
                agent="shipping",
                time_allowed=time,
                after=("reserve-stock", "take-payment"),
                undo=undo,
            ),
        ),
        on_failure=OnFailure.HOLD,
        notify_steps=True,
    )


def _delivered(time: timedelta) -> Workflow:
    """The order ends when the parcel has arrived. The invoice is mailed in parallel to shipping."""
    undo = Undo(time)
    return Workflow(
        name="order-delivered",
        version=1,
        steps=(
            Step("reserve-stock", agent="inventory", time_allowed=time, undo=undo),
            Step("take-payment", agent="payment", time_allowed=time, undo=undo),
            Step("ship", agent="shipping", time_allowed=time, undo=undo),
            Step(
                "send-invoice",
                agent="invoice",
                time_allowed=time,
                after=("take-payment",),
                undo=undo,
            ),
            Step(
                "deliver",
                agent="delivery",
                time_allowed=time,
                after=("ship", "send-invoice"),
                undo=undo,
            ),
        ),
        on_failure=OnFailure.UNDO,
    )
