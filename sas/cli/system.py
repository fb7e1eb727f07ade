"""The system that a verb works on: its settings, its table and its namespace.

``run`` gives a verb a ``LiveSystem``, which opens the table and the namespace when the verb asks
for them. If nothing is printed for some seconds, it says what the verb waits for.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

import typer

from sas.adapters.endpoints import Endpoint
from sas.cli import screen
from sas.config import SettingError, read_queues, read_table_name, read_tables
from sas.domain.queues import Queues
from sas.environment import (
    CONNECTION,
    NOTHING,
    OF_TABLES,
    StackError,
    here,
    names_a_system,
    service_bus,
)
from sas.operate.errors import NotPossibleError, ServiceUnavailableError, UsageError
from sas.ports import (
    BusUnavailableError,
    OperatorBus,
    OtherVersionError,
    StateStore,
    StoreMismatchError,
    StoreUnavailableError,
    UndeliverableError,
)

SILENCE_S = 3.0
"""After so many seconds without a word, the command says what it waits for."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage account and the state store's table in it."""

    endpoint: Endpoint
    table: str

    @property
    def account(self) -> str:
        """The host of the account's tables, or the name that a connection string has."""
        parts = (self.endpoint.connection_string or "").split(";")
        fields = dict(part.partition("=")[::2] for part in parts)
        address = self.endpoint.address or fields.get("TableEndpoint")
        return urlsplit(address).netloc if address else fields.get("AccountName", "Azurite")


@dataclass(kw_only=True)
class LiveSystem:
    """The table, the namespace and the queues' names, as the environment has them.

    ``waits_for`` says in words what the verb has asked last; it is empty while the verb pauses.
    """

    waits_for: str = "the system"
    _resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    _store: StateStore | None = None
    _bus: OperatorBus | None = None

    @property
    def queues(self) -> Queues:
        """The names of the queues; raises SettingError."""
        return read_queues(os.environ)

    async def store(self) -> StateStore:
        """Return the state store.

        Raises:
            UsageError: the environment names no table, or one that cannot exist.
            NotPossibleError: there is no such table.
            ServiceUnavailableError: the account does not answer, or refuses.
        """
        storage = read_storage(os.environ)
        address = storage.endpoint.address or "the storage account of the connection string"
        self.waits_for = f"table {storage.table} of {address}"
        if self._store is None:
            self._store = await open_store(storage)
            self._resources.push_async_callback(self._store.close)
        return self._store

    async def bus(self) -> OperatorBus:
        """Return the Service Bus namespace.

        Raises:
            UsageError: the environment names none, or one that cannot exist.
        """
        if self._bus is None:
            endpoint = read_bus(os.environ)
            self.waits_for = f"Service Bus {endpoint.address or ''}".rstrip()
            self._bus = await open_bus(endpoint)
            self._resources.push_async_callback(self._bus.close)
        return self._bus

    async def bus_if_any(self) -> OperatorBus | None:
        """Return the Service Bus namespace; None if the environment names none."""
        return await self.bus() if service_bus(os.environ) else None

    async def close(self) -> None:
        """Close what was opened."""
        await self._resources.aclose()


def run(work: Callable[[LiveSystem], Awaitable[int]], env: Mapping[str, str] | None = None) -> None:
    """Run the work of a verb on the system, and end the command with its exit code.

    ``env`` takes the place of the environment variables.

    Raises:
        typer.Exit: always, with the exit code.
        CommandError: the verb ends with a sentence.
    """
    raise typer.Exit(result(work, env))


def result(
    work: Callable[[LiveSystem], Awaitable[int]], env: Mapping[str, str] | None = None
) -> int:
    """Run work on the system; return the exit code. Raises as ``run``, but no typer.Exit."""
    with environment(env):
        try:
            return asyncio.run(_work(work))
        except KeyboardInterrupt:
            return screen.INTERRUPTED


async def _work(work: Callable[[LiveSystem], Awaitable[int]]) -> int:
    system = LiveSystem()
    watch = asyncio.create_task(_break_silence(system))
    try:
        return await work(system)
    except (StoreUnavailableError, OtherVersionError, StoreMismatchError) as error:
        raise ServiceUnavailableError(str(error)) from None
    except (BusUnavailableError, UndeliverableError) as error:
        raise ServiceUnavailableError(str(error)) from None
    finally:
        watch.cancel()
        await system.close()


async def _break_silence(system: LiveSystem) -> None:
    """Say once what the verb waits for, if it prints nothing for some seconds."""
    screen.begin()
    while True:
        if not system.waits_for:
            screen.begin()
        if (remaining_s := SILENCE_S - screen.silent_s()) <= 0:
            break
        await asyncio.sleep(remaining_s)
    screen.complain(f"sas: waiting for {system.waits_for}. Ctrl-C ends this")


@contextmanager
def environment(env: Mapping[str, str] | None = None) -> Iterator[None]:
    """Give the process the settings of the system that the verb works on.

    If the environment, or ``env`` in its place, names no system, the settings come from the stack
    that runs here, if any. At the end of this context, the environment is as it was before.

    Raises:
        UsageError: the file with the settings of the stack cannot be used.
    """
    try:
        system = here(env)
    except StackError as error:
        raise UsageError(str(error)) from None
    if system.stack and screen.is_terminal(sys.stderr):
        screen.complain(f"sas: using {system.stack}")
    before, settings = dict(os.environ), system.settings
    names = {name for name, _ in before.items() ^ settings.items()}
    _take(names, settings)
    try:
        yield
    finally:
        _take(names, before)


def _take(names: Iterable[str], env: Mapping[str, str]) -> None:
    """Give the process these variables as they are in ``env``."""
    for name in names:
        if name in env:
            os.environ[name] = env[name]
        else:
            os.environ.pop(name, None)


def read_storage(env: Mapping[str, str]) -> Storage:
    """Return the table that the environment names.

    Raises:
        UsageError: the environment names no table, or one that cannot exist.
    """
    try:
        return Storage(read_tables(env), read_table_name(env))
    except SettingError as error:
        if not names_a_system(env):
            raise UsageError(f"{NOTHING}; or set {OF_TABLES[0]} or {OF_TABLES[1]}") from None
        raise UsageError(str(error)) from None


async def open_store(storage: Storage) -> StateStore:
    """Open the state store. Raises as ``LiveSystem.store``."""
    # Slow to import (Azure's SDK), and not needed for --help.
    from sas.adapters.tables.store import NoStoreError, connect_existing  # noqa: PLC0415

    try:
        return await connect_existing(storage.endpoint, storage.table)
    except NoStoreError as error:
        raise NotPossibleError(str(error)) from None
    except ValueError as error:
        raise UsageError(
            f"the storage connection string cannot be read: {str(error).rstrip('.')}. It looks "
            "like DefaultEndpointsProtocol=https;AccountName=...;AccountKey=...;"
            "EndpointSuffix=core.windows.net"
        ) from None


async def service_time(storage: Storage) -> datetime | None:
    """Return the time of the table's service; None if it does not tell it."""
    from sas.adapters.tables.store import service_time as ask  # noqa: PLC0415

    return await ask(storage.endpoint, storage.table)


def read_bus(env: Mapping[str, str]) -> Endpoint:
    """Return the Service Bus namespace that the environment names.

    Raises:
        UsageError: the environment names no namespace, or one that cannot exist.
    """
    namespace = service_bus(env)
    if namespace and "=" in namespace:
        return Endpoint(connection_string=namespace)
    if not namespace:
        prefix = "no connection:" if names_a_system(env) else f"{NOTHING}; or"
        raise UsageError(
            f"{prefix} set {CONNECTION} to a Service Bus connection string, or "
            f"{CONNECTION}__fullyQualifiedNamespace to the namespace's host name"
        )
    if "." not in namespace or "/" in namespace:
        raise UsageError(
            f"connection {namespace[:80]!r} is neither a connection string (Endpoint=sb://...) "
            "nor a namespace's host name (NAME.servicebus.windows.net)"
        )
    return Endpoint(address=namespace)


async def open_bus(endpoint: Endpoint) -> OperatorBus:
    """Open the bus.

    Raises:
        UsageError: the connection string cannot be read.
    """
    from sas.adapters.queues import OperatorServiceBus  # noqa: PLC0415  # slow to import

    try:
        return OperatorServiceBus.connect(endpoint)
    except ValueError as error:
        raise UsageError(unreadable(error)) from None


def unreadable(error: ValueError) -> str:
    """Return the sentence that a connection string of Service Bus cannot be read."""
    return (
        f"the connection string cannot be read: {error} It looks like "
        "Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=...;SharedAccessKey=..."
    )
