"""What the actors need of the world: a state store, a message bus, a clock, remote agents.

Each port has two adapters that pass one contract suite: the real one in ``sas.adapters``
and the one in memory in ``sas.simulation``.
"""

from sas.ports.agents import (
    Agent,
    AwaitCallback,
    Call,
    Callback,
    CallbacksOffError,
    Later,
    RefusedError,
    StillRunning,
    TransientError,
)
from sas.ports.blocking import Blocking, BlockingAgent
from sas.ports.bus import BusUnavailableError, Message, MessageBus, UndeliverableError
from sas.ports.business import LIMIT_MAX, Business
from sas.ports.clock import Clock
from sas.ports.sealing import KeyMissingError, KeyRing, SealedError
from sas.ports.store import (
    Cell,
    ConflictError,
    Exporter,
    LostContentError,
    StateStore,
    StoreMismatchError,
    StoreUnavailableError,
    Summary,
    UnreadableError,
)

__all__ = [
    "LIMIT_MAX",
    "Agent",
    "AwaitCallback",
    "Blocking",
    "BlockingAgent",
    "BusUnavailableError",
    "Business",
    "Call",
    "Callback",
    "CallbacksOffError",
    "Cell",
    "Clock",
    "ConflictError",
    "Exporter",
    "KeyMissingError",
    "KeyRing",
    "Later",
    "LostContentError",
    "Message",
    "MessageBus",
    "RefusedError",
    "SealedError",
    "StateStore",
    "StillRunning",
    "StoreMismatchError",
    "StoreUnavailableError",
    "Summary",
    "TransientError",
    "UndeliverableError",
    "UnreadableError",
]
