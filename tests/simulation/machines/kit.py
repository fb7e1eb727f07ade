"""What every state machine of this folder has: an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest import TestCase
from unittest.mock import patch

from hypothesis import settings
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.stateful import RuleBasedStateMachine

T = TypeVar("T")
EXAMPLES_SHORT = 25
"""Examples of the profile "short" (tests/conftest.py)."""


class AsyncMachine(RuleBasedStateMachine):
    """A machine whose rules await: Hypothesis calls rules outside any event loop.

    A machine plays a *sequence* of steps against the code and against a small reference model,
    and compares both after each step. The model is written from the rule, never from the code.
    """

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns, in the event loop of this run of the machine."""
        return self._runner.run(coroutine)

    def teardown(self) -> None:
        """Close the event loop."""
        self._runner.close()


def sequences(machine: type[AsyncMachine], *, examples: int, steps: int) -> type[TestCase]:
    """Return the test of a machine: so many new sequences of so many steps.

    Hypothesis would play each sequence up to five more times with a part of it repeated. A machine
    gains more from new sequences. With the profile "long" there are ten times as many.
    """
    base: Any = machine.TestCase

    class Sequences(base):  # type: ignore[misc]
        def runTest(self) -> None:  # noqa: N802  the name that unittest looks for
            with patch.object(ConjectureRunner, "generate_mutations_from"):
                super().runTest()

        runTest.is_hypothesis_test = True  # type: ignore[attr-defined]

    times = settings().max_examples / EXAMPLES_SHORT
    Sequences.settings = settings(max_examples=round(examples * times), stateful_step_count=steps)
    return Sequences
