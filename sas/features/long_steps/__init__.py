"""Feature: long steps."""
