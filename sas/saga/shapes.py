"""The types of a workflow's content, and what an order has stored that does not fit them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sas.codec.payloads import is_encoded
from sas.domain.content import Content
from sas.domain.order import Direction, Order
from sas.domain.workflow import Workflow
from sas.ports import Business, HeldError
from sas.saga.business import SagaAgent
from sas.saga.content import decoded


@dataclass(frozen=True, slots=True)
class Shapes:
    """The type of a workflow's order, and of each step's result by step name."""

    order: Any
    results: Mapping[str, Any]

    def misfits(self, order: Order) -> Iterator[str]:
        """Yield a sentence for each content of an order that does not fit its type.

        The content is decoded. What is still encoded, or lost, is left out.
        """
        stored: list[tuple[str, Content | None, Any]] = [
            ("the order", order.details.payload, self.order)
        ]
        for step in order.steps:
            stored.append((f"the edited input of {step.name}", step.call.edited, self.order))
            # A step that was skipped has the result null. Its undo takes None.
            if order.direction is Direction.DO or step.result != "null":
                stored.append((f"the result of {step.name}", step.result, self.results[step.name]))
        for what, text, shape in stored:
            if isinstance(text, str) and not is_encoded(text):
                try:
                    decoded(msgspec.Raw(text.encode()), shape, what)
                except HeldError as error:
                    yield str(error)


def shapes_of(business: Business, workflow: Workflow) -> Shapes | None:
    """Return the types of a workflow's content; None if its agents are not made of sagas."""
    order: Any = None
    results: dict[str, Any] = {}
    for step in workflow.steps:
        agent = business.agents[step.agent]
        if not isinstance(agent, SagaAgent):
            return None
        function = agent.function(workflow.name, step.name)
        order, results[step.name] = function.order, function.result
    return Shapes(order, results)
