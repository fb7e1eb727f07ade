"""Queues without sockets: the semantics of Service Bus. Callers pass the time."""
