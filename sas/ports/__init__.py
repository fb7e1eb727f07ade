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
from sas.ports.encryption import DecryptionError, KeyMissingError, KeyRing
from sas.ports.store import (
    ConflictError,
    Exporter,
    LostContentError,
    SharedValue,
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
    "Clock",
    "ConflictError",
    "DecryptionError",
    "Exporter",
    "KeyMissingError",
    "KeyRing",
    "Later",
    "LostContentError",
    "Message",
    "MessageBus",
    "RefusedError",
    "SharedValue",
    "StateStore",
    "StillRunning",
    "StoreMismatchError",
    "StoreUnavailableError",
    "Summary",
    "TransientError",
    "UndeliverableError",
    "UnreadableError",
]
