"""`with` and `async with` for objects that have `start` and `stop`."""

from abc import ABC, abstractmethod
from typing import Self


class Stoppable(ABC):
    """An object that runs already; `with` stops it at the end."""

    @abstractmethod
    def stop(self) -> object:
        """Stop it; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Runnable(Stoppable):
    """An object that `with` starts and stops."""

    @abstractmethod
    def start(self) -> object:
        """Start it; return when it is ready."""

    def __enter__(self) -> Self:
        self.start()
        return self


class AsyncRunnable(ABC):
    """An object that `async with` starts and stops."""

    @abstractmethod
    async def start(self) -> object:
        """Start it; return when it is ready."""

    @abstractmethod
    async def stop(self) -> object:
        """Stop it; a second call does nothing."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
