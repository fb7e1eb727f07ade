"""Feature: queue delay."""
