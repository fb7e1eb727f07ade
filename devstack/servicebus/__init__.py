"""A Service Bus broker for one machine: queues over AMQP 1.0, for the real SDKs.

The layers, lowest first:

- ``amqp`` encodes and decodes values and frames;
- ``core`` holds the queues and knows nothing of sockets (theory of operation: core/queue.py);
- ``storage`` makes changes durable before they are acknowledged (theory of operation there);
- ``wire`` has connections, sessions and links (theory: wire/connection.py, wire/session.py);
- ``admin`` is the management port;
- ``broker`` joins all of them in one object, and ``__main__`` is the command.

The broker itself is imported when it is first used, because `devstack up` only reads its
configuration.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from devstack.servicebus.config import Config, ConfigError, read_config
from devstack.servicebus.core.properties import EntityStatus, QueueProperties

if TYPE_CHECKING:
    from devstack.servicebus.broker import Broker
    from devstack.servicebus.wire.context import Limits
    from devstack.servicebus.wire.server import QueueCounts

__all__ = [
    "Broker",
    "Config",
    "ConfigError",
    "EntityStatus",
    "Limits",
    "QueueCounts",
    "QueueProperties",
    "read_config",
]
_MODULES = {"Broker": "broker", "Limits": "wire.context", "QueueCounts": "wire.server"}

if not TYPE_CHECKING:  # with this function, a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
