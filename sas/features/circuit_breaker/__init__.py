"""Feature: circuit breaker."""
