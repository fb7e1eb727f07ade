"""A broker that speaks the AMQP 1.0 of Service Bus queues to the real SDKs."""
