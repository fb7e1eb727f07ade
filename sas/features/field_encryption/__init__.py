"""Feature: field encryption."""
