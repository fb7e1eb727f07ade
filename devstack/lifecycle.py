"""`async with` for objects that have `start` and `stop`; the signals that end a command."""

import asyncio
import signal
from abc import ABC, abstractmethod
from typing import Self


class AsyncRunnable(ABC):
    """An object that `async with` starts and stops."""

    @abstractmethod
    async def start(self) -> object:
        """Start the object; return when it is ready."""

    @abstractmethod
    async def stop(self) -> object:
        """Stop the object; a second call does nothing."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM, Ctrl-C or the end of the terminal sets."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping
