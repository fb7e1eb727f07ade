"""The workflows of this business, as data."""

from __future__ import annotations

from datetime import timedelta

from sas.domain.workflow import OnFailure, Step, Undo, Workflow, Workflows


def workflows(time_allowed: timedelta = timedelta(seconds=30)) -> Workflows:
    """Return what this deployment can run; ``time_allowed`` is each step's.

    ``order`` succeeds or is undone by itself. ``order-with-care``, for customers whom
    somebody would rather call, stays in Error for an operator; it reserves and charges side
    by side and ships when both are done. ``order-delivered`` goes on until the parcel has
    arrived: the invoice is mailed beside shipping, and delivery takes as long as it takes.
    """
    undo = Undo(time_allowed)
    return Workflows(
        [
            Workflow(
                name="order",
                version=1,
                steps=(
                    Step("reserve-stock", "inventory", time_allowed, undo=undo),
                    Step("take-payment", "payment", time_allowed, undo=undo),
                    Step("ship", "shipping", time_allowed, undo=undo),
                ),
                on_failure=OnFailure.UNDO,
            ),
            Workflow(
                name="order-with-care",
                version=1,
                steps=(
                    Step("reserve-stock", "inventory", time_allowed, after=(), undo=undo),
                    Step("take-payment", "payment", time_allowed, after=(), undo=undo),
                    Step(
                        "ship",
                        "shipping",
                        time_allowed,
                        after=("reserve-stock", "take-payment"),
                        undo=undo,
                    ),
                ),
                on_failure=OnFailure.HOLD,
            ),
            Workflow(
                name="order-delivered",
                version=1,
                steps=(
                    Step("reserve-stock", "inventory", time_allowed, undo=undo),
                    Step("take-payment", "payment", time_allowed, undo=undo),
                    Step("ship", "shipping", time_allowed, undo=undo),
                    Step(
                        "send-invoice", "invoice", time_allowed, after=("take-payment",), undo=undo
                    ),
                    Step(
                        "deliver",
                        "delivery",
                        time_allowed,
                        after=("ship", "send-invoice"),
                        undo=undo,
                    ),
                ),
                on_failure=OnFailure.UNDO,
            ),
        ]
    )
