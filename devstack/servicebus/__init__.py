"""A Service Bus broker for one machine: queues over AMQP 1.0, for the real SDKs.

The layers, lowest first: ``amqp`` has values and frames, ``core`` the queues without sockets,
``wire`` connections, sessions and links, ``storage`` the data, ``admin`` the management port,
``broker`` all of it as one object, ``__main__`` the command.

The broker is imported when it is first used: `devstack up` only reads its configuration.
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
    "Broker", "Config", "ConfigError", "EntityStatus", "Limits", "QueueCounts", "QueueProperties",
    "read_config",
]  # fmt: skip
_WHERE = {"Broker": "broker", "Limits": "wire.context", "QueueCounts": "wire.server"}

if not TYPE_CHECKING:  # a checker would take any name

    def __getattr__(name: str) -> object:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
