"""The engine: makes decisions come true."""
