"""Fuzz every entry point: input from outside is accepted, or refused with a clear error.

    python -m lab.fuzz --inputs 200000 --seed 1

``mutation`` makes inputs of valid ones. ``scene`` has orders in every state, the real actors and
the real table store over rows in memory. ``messages``, ``rows`` and ``files`` are the entry points.
"""
