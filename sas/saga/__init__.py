"""Sagas: what an adopter writes. A step is a function, and everything else follows from it.

1. **A step is a function.** ``Saga.step`` takes it, and ``SagaStep.undo`` its undo.
   The first parameter is the call. The other parameters are the results of the steps in ``after``.
   The return type is the step's result, and the argument of ``Call`` is the order. All of them are
   checked when the module is imported, so that no order has to find a mistake.
2. **The workflow as data.** The state machine knows names, times and numbers (``sas.domain``).
   ``business_of`` makes these from the sagas, and one agent for each name. So a stored order and a
   message hold no function and no type, and a function can be renamed if ``name=`` keeps its name.
3. **One agent, several steps.** Each agent has a queue and a function, and its circuit breaker is
   about one remote service. Steps share an agent by ``agent=``. A request names its workflow and
   step but not the version. So two versions share the function of a step, or give one of the two
   another agent. If they have other steps before it, the results that come tell which one it is.
4. **Content.** An order is converted at the door and at each step, a result where it is made and
   where it is used. What no longer fits after a deploy is held with its reason (``HeldError``): a
   step that has had its effect is never undone because a type was changed.
"""

from sas.saga.business import business_of, sagas_of
from sas.saga.call import Call
from sas.saga.definition import Saga, SagaStep

__all__ = ["Call", "Saga", "SagaStep", "business_of", "sagas_of"]
