"""The ports over the real services: Table Storage, Service Bus, HTTP."""
