"""AMQP 1.0 as bytes: values, frames and message sections. No sockets, no queues."""
