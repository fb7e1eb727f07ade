"""Feature: incidents."""
