"""A Service Bus broker for one machine: queues over AMQP 1.0, for the real SDKs.

The layers, lowest first: ``amqp`` has values and frames, ``core`` the queues without sockets,
``wire`` connections, sessions and links, ``storage`` the data, ``admin`` the management port,
``broker`` all of it as one object, ``__main__`` the command.
"""

from devstack.servicebus.broker import Broker
from devstack.servicebus.config import Config, ConfigError, read_config
from devstack.servicebus.core.properties import EntityStatus, QueueProperties
from devstack.servicebus.wire.context import Limits
from devstack.servicebus.wire.server import QueueCounts

__all__ = [
    "Broker", "Config", "ConfigError", "EntityStatus", "Limits", "QueueCounts", "QueueProperties",
    "read_config",
]  # fmt: skip
