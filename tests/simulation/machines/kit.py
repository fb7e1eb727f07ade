"""What every state machine of this folder has: an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

T = TypeVar("T")


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
