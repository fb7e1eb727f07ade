"""Simulate a whole system with its own workflows: ``sas sim``."""
