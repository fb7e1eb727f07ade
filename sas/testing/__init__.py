"""The test kit: your sagas in the real engine, in virtual time, with models of their services.

With ``pip install "scheduler-agent-supervisor[testing]"`` a test has the fixture ``saga``, a
``Kit``. It plays an order to its end::

    def test_a_claim_is_paid(saga: Kit) -> None:
        order = saga.run(claims, claim, callbacks={"approve": Approval(allowed=Decimal(80))})
        assert order.state == "Processed"
        assert len(saga.service("BANK_URL").effects) == 1

- ``Kit.run`` plays an order, ``Kit.run_all`` several. They return ``PlayedOrder``.
- ``Kit.service`` returns a ``StandIn``, the model of a service. It answers by itself with values of
  the types that your functions ask for. ``StandIn.answer`` sets another answer. Its ``calls`` and
  ``effects`` are lists of ``ServiceRequest``.
- ``Refusal`` and ``Late`` are answers by callback.
- Faults: ``Kit.away``, ``answers_lost``, ``calls_fail``, ``calls_hang``, ``functions_die``,
  ``every_message_twice``, ``restart``, ``cancel``.
- A mistake of a function is a ``StoryError``.

``sas sim`` plays the same kit with orders and faults that it draws.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sas.testing.kit import Kit, PlayedOrder, StoryError
    from sas.testing.own_agents import Late, Refusal, ServiceRequest, StandIn

__all__ = ["Kit", "Late", "PlayedOrder", "Refusal", "ServiceRequest", "StandIn", "StoryError"]
_OF_KIT = ("Kit", "PlayedOrder", "StoryError")


if not TYPE_CHECKING:  # a checker would take any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'sas.testing' has no attribute {name!r}")
        module = "kit" if name in _OF_KIT else "own_agents"
        member: object = getattr(import_module(f"sas.testing.{module}"), name)
        globals()[name] = member
        return member
