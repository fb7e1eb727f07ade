"""The workflows of this business."""

from __future__ import annotations

from datetime import timedelta

from sas import OnFailure, Step, Undo, Workflow, Workflows

TIME = timedelta(seconds=30)


def workflows() -> Workflows:
    """Return what this deployment can run. A changed workflow gets a new version."""
    return Workflows(
        [
            Workflow(
                name="order",
                version=1,
                steps=(
                    Step("reserve", agent="stock", time_allowed=TIME, undo=Undo()),
                    Step("pay", agent="payment", time_allowed=TIME, undo=Undo()),
                ),
                on_failure=OnFailure.UNDO,
            )
        ]
    )
