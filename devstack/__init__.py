"""Azure on one machine: a Service Bus broker, an embedded Functions host, Azurite."""
