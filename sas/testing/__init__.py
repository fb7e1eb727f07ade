"""The whole system in memory, with a virtual clock and faults chosen by a test or a seed.

Our tests, ``sas sim`` and the tests of an adopter use it. What is named here is for adopters.
"""

from sas.domain.messages import Verb
from sas.domain.order import OrderState
from sas.testing.plan import Apart, Away, Chance, Deploy, Kill, Outside, Press
from sas.testing.simulation import Simulation

__all__ = [
    "Apart",
    "Away",
    "Chance",
    "Deploy",
    "Kill",
    "OrderState",
    "Outside",
    "Press",
    "Simulation",
    "Verb",
]
