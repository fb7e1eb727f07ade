"""An event loop for simulations: it runs what is ready, and looks at nothing outside meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sized
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SETTLE_CALLS_MAX = 100_000
"""Most calls before the clock moves on, in case a task never waits."""


class LeanLoop(asyncio.SelectorEventLoop):
    """Runs calls in the order of its base class, which asks the selector in each iteration.

    This one asks it only if nothing is ready, and nobody waits for that.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool
    _idle: asyncio.Future[None] | None = None

    async def idle(self) -> None:
        """Return once nothing else is ready to run. One task at a time can wait for that."""
        self._idle = self.create_future()
        await self._idle

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See ``AbstractEventLoop.call_soon``."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        if not (self._ready or self._idle):
            super()._run_once()  # type: ignore[misc]
        ready = self._ready
        for _ in range(SETTLE_CALLS_MAX):
            if not ready:
                break
            handle = ready.popleft()
            if not handle._cancelled:  # noqa: SLF001
                handle._run()  # noqa: SLF001  as the base class does
            if self._stopping:
                return
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(None)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, run as ``asyncio.run`` does."""
    with asyncio.Runner(loop_factory=LeanLoop) as runner:
        return runner.run(work)


def ready() -> Sized:
    """Return what is ready to run beside the current task. No public call tells it."""
    return asyncio.get_running_loop()._ready  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


async def others_run(turns: int) -> None:
    """Let others run for so many turns. Where no other is ready, nothing can happen."""
    others = ready()
    while turns and others:
        await asyncio.sleep(0)
        turns -= 1
