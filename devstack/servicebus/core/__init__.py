"""Queues without sockets: Service Bus semantics with the clock passed in."""
