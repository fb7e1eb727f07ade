"""Agents written without async: each call runs in a thread."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from sas.ports.agents import Call

THREADS_MAX = 32


class BlockingAgent(Protocol):
    """The same as ``Agent``, without async: for client libraries that block.

    It returns and raises as an ``Agent`` does. Threads call it side by side, so it must bear that
    (a session for each call, or one that is safe to share). It cannot send heartbeats.
    """

    def do(self, call: Call) -> Any:
        """See ``Agent.do``."""
        ...

    def undo(self, call: Call) -> Any:
        """See ``Agent.undo``."""
        ...

    def close(self) -> None:
        """See ``Agent.close``."""
        ...


class Blocking:
    """An ``Agent`` over one that blocks.

    A thread cannot be stopped: past CompleteBy nothing waits for it any more, yet it goes on, and
    holds one of at most ``threads`` places. So give every call a time limit of its own, shorter
    than its step's.
    """

    def __init__(self, agent: BlockingAgent, threads: int = THREADS_MAX) -> None:
        self._agent = agent
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=type(agent).__name__)

    async def do(self, call: Call) -> Any:
        """See ``Agent.do``."""
        return await self._in_thread(self._agent.do, call)

    async def undo(self, call: Call) -> Any:
        """See ``Agent.undo``."""
        return await self._in_thread(self._agent.undo, call)

    async def close(self) -> None:
        """See ``Agent.close``."""
        await self._in_thread(self._agent.close)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Any, *given: object) -> Any:
        context = contextvars.copy_context()  # the trace goes with it
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, context.run, work, *given)
