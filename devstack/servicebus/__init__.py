"""A broker that speaks the AMQP 1.0 of Service Bus queues to the real SDKs.

From below: ``amqp`` is bytes, ``core`` the queues without sockets, ``wire`` connections, sessions
and links, ``broker`` all of it as one object, ``__main__`` the command.
"""

from devstack.servicebus.broker import Broker, QueueCounts
from devstack.servicebus.config import Config, ConfigError, read_config
from devstack.servicebus.core.properties import EntityStatus, QueueProperties
from devstack.servicebus.limits import Limits
from devstack.servicebus.runners import BrokerProcess, BrokerThread, start_broker

__all__ = [
    "Broker",
    "BrokerProcess",
    "BrokerThread",
    "Config",
    "ConfigError",
    "EntityStatus",
    "Limits",
    "QueueCounts",
    "QueueProperties",
    "read_config",
    "start_broker",
]
