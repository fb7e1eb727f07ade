"""`with` and `async with` for whatever starts and stops, written once."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Stoppable(ABC):
    """Something that runs already: `with` stops it at the end, whatever happened."""

    @abstractmethod
    def stop(self) -> object:
        """Stop it; to stop twice is no error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Runnable(Stoppable):
    """Something that `with` starts and stops."""

    @abstractmethod
    def start(self) -> object:
        """Start it, and return when it is ready."""

    def __enter__(self) -> Self:
        self.start()
        return self


class AsyncRunnable(ABC):
    """Something that `async with` starts and stops."""

    @abstractmethod
    async def start(self) -> object:
        """Start it, and return when it is ready."""

    @abstractmethod
    async def stop(self) -> object:
        """Stop it; to stop twice is no error."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
