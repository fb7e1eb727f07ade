"""Feature: callbacks."""
