"""The management port: the Atom/XML API of Service Bus, health, and faults on demand."""
