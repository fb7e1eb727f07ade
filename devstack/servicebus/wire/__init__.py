"""Connections, sessions and links: AMQP 1.0 on sockets, with a queue behind each link."""
