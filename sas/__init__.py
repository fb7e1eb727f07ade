"""The Scheduler Agent Supervisor pattern on Azure Service Bus, Table Storage and Functions."""
