"""What a verb is, and the arguments that verbs share: the namespace, the table, numbers."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from sas.adapters.endpoints import Endpoint
from sas.cli import output
from sas.config import (
    SettingError,
    read_order_bytes_max,
    read_queues,
    read_table_name,
    read_tables,
)
from sas.domain.queues import ForbiddenReplyQueueError, Queues
from sas.environment import CONNECTION, NOTHING, StackError, here, names_a_system, service_bus
from sas.operate.errors import NotPossibleError, UnavailableError, UsageError
from sas.ports import (
    OperatorBus,
    OtherVersionError,
    StateStore,
    StoreMismatchError,
    StoreUnavailableError,
)

Work = Callable[[StateStore], Awaitable[int]]
"""What a verb does with the store; it returns the exit code."""
REPLY_QUEUE = "SAS_REPLY_QUEUE"


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command. ``run`` returns the exit code."""

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]

    @classmethod
    def with_store(
        cls,
        name: str,
        summary: str,
        description: str,
        add_arguments: Callable[[argparse.ArgumentParser], None],
        prepare: Callable[[argparse.Namespace], Work],
    ) -> Verb:
        """Return a verb that needs the state store.

        ``prepare`` checks the arguments, before the store is opened, and returns the work.
        """

        def add(parser: argparse.ArgumentParser) -> None:
            add_arguments(parser)
            add_storage(parser)

        def run(arguments: argparse.Namespace) -> int:
            where = read_storage(arguments, os.environ)
            return asyncio.run(_with_store(where, prepare(arguments)))

        return cls(name, summary, description, add, run)


async def _with_store(where: Storage, work: Work) -> int:
    async with open_store(where) as store:
        return await work(store)


@contextmanager
def found_here(arguments: argparse.Namespace) -> Iterator[None]:
    """Let the process's environment be that of the system to work on, as long as this lasts.

    Raises:
        UsageError: the file of the stack that runs here cannot be used.
    """
    named = [getattr(arguments, name) for name in _CONNECTS if hasattr(arguments, name)]
    if not named or any(named):
        yield  # it connects to nothing, or to what its own arguments say
        return
    try:
        found = here()
    except StackError as error:
        raise UsageError(str(error)) from None
    if found.stack and output.columns(sys.stderr):
        output.complain(f"sas: using {found.stack}")
    before = dict(os.environ)
    os.environ.update(found.settings)
    try:
        yield
    finally:
        for name in found.settings.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


_CONNECTS = ("storage", "connection")
"""Arguments of the verbs that reach a system."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A Service Bus namespace, and the application that uses it."""

    endpoint: Endpoint
    reply_queue: str
    queues: Queues
    order_bytes_max: int


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage account and the state store's table in it."""

    endpoint: Endpoint
    table: str


def number(what: str, least: float, most: float, *, whole: bool = False) -> Callable[[str], float]:
    """Return the type of an argument that is a number within these bounds."""

    def read(text: str) -> float:
        try:
            value = int(text) if whole and text.isascii() and len(text) <= 9 else float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most or (whole and not isinstance(value, int)):
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r}: give {what} from {least:g} to {most:,.0f}"
            )
        return value

    return read


def add_json(parser: argparse.ArgumentParser, what: str = "JSON lines instead of text") -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a verb that reads the state store."""
    parser.add_argument(
        "--storage",
        metavar="TEXT",
        help="Storage connection string, or the address of the tables (https://...) to sign in to "
        "with azure-identity (default: the environment's SAS_TABLES, SAS_TABLES__endpoint or "
        "AzureWebJobsStorage)",
    )
    parser.add_argument(
        "--table", metavar="NAME", help="the table (default: the environment's SAS_TABLE, orders)"
    )


def read_storage(arguments: argparse.Namespace, env: Mapping[str, str]) -> Storage:
    """Return the table that the arguments and the environment name.

    Raises:
        UsageError: they name none, or one that cannot exist.
    """
    said = dict(env)
    given: str | None = arguments.storage
    if given:
        said.pop("SAS_TABLES__endpoint", None)
        is_address = given.startswith(("https://", "http://"))
        said["SAS_TABLES__endpoint" if is_address else "SAS_TABLES"] = given
    if arguments.table:
        said["SAS_TABLE"] = arguments.table
    try:
        return Storage(read_tables(said), read_table_name(said))
    except SettingError as wrong:
        if not names_a_system(said):
            raise UsageError(f"{NOTHING}; or give --storage or set SAS_TABLES") from None
        raise UsageError(f"{wrong} (or give --storage)") from None


@asynccontextmanager
async def open_store(where: Storage) -> AsyncIterator[StateStore]:
    """Open the state store as long as this lasts.

    Raises:
        UsageError: the connection string cannot be read.
        NotPossibleError: there is no such table.
        UnavailableError: the account did not answer, then or later.
    """
    # Slow to import (Azure's SDK), and not needed for --help.
    from sas.adapters.table_store import NoStoreError, connect_existing  # noqa: PLC0415

    try:
        store = await connect_existing(where.endpoint, where.table)
    except NoStoreError as missing:
        raise NotPossibleError(str(missing)) from None
    except (StoreUnavailableError, OtherVersionError, StoreMismatchError) as silent:
        raise UnavailableError(str(silent)) from None
    except ValueError as wrong:
        raise UsageError(
            f"the storage connection string cannot be read: {str(wrong).rstrip('.')}. It looks "
            "like DefaultEndpointsProtocol=https;AccountName=...;AccountKey=...;"
            "EndpointSuffix=core.windows.net"
        ) from None
    try:
        yield store
    except (StoreUnavailableError, OtherVersionError, StoreMismatchError) as silent:
        raise UnavailableError(str(silent)) from None
    finally:
        await store.close()


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a verb that sends to Service Bus."""
    parser.add_argument(
        "--connection",
        metavar="TEXT",
        help=f"Service Bus connection string, or the namespace's host name to sign in to with "
        f"azure-identity (default: the environment's {CONNECTION}, or "
        f"{CONNECTION}__fullyQualifiedNamespace). Keep a key in the environment: other users of "
        "the machine can see arguments",
    )


def read_connection(arguments: argparse.Namespace, env: Mapping[str, str]) -> Connection:
    """Return the namespace and the response queue that the arguments and the environment name.

    Raises:
        UsageError: one is missing, or cannot exist.
    """
    queues = read_queues(env)
    reply_queue = arguments.reply_queue or env.get(REPLY_QUEUE)
    if not reply_queue:
        raise UsageError(
            f"no reply queue: give --reply-queue {queues.response_prefix}NAME or set {REPLY_QUEUE}"
        )
    try:
        queues.check_reply_queue(reply_queue)
    except ForbiddenReplyQueueError as wrong:
        raise UsageError(str(wrong)) from None
    return Connection(read_bus(arguments, env), reply_queue, queues, read_order_bytes_max(env))


def read_bus(arguments: argparse.Namespace, env: Mapping[str, str]) -> Endpoint:
    """Return the Service Bus namespace that the arguments and the environment name.

    Raises:
        UsageError: they name none, or one that cannot exist.
    """
    namespace = arguments.connection or service_bus(env)
    if namespace and "=" in namespace:
        return Endpoint(connection_string=namespace)
    if not namespace:
        if not names_a_system(env):
            raise UsageError(f"{NOTHING}; or give --connection or set {CONNECTION}")
        raise UsageError(
            f"no connection: give --connection or set {CONNECTION} to a Service Bus connection "
            "string (the portal shows it under Shared access policies)"
        )
    if "." not in namespace or "/" in namespace:
        raise UsageError(
            f"connection {namespace[:80]!r} is neither a connection string (Endpoint=sb://...) "
            "nor a namespace's host name (NAME.servicebus.windows.net)"
        )
    return Endpoint(address=namespace)


def has_bus(arguments: argparse.Namespace, env: Mapping[str, str]) -> bool:
    """Return whether the arguments or the environment name a Service Bus namespace."""
    return bool(arguments.connection or service_bus(env))


@asynccontextmanager
async def open_bus_if_any(arguments: argparse.Namespace) -> AsyncIterator[OperatorBus | None]:
    """Open the bus as long as this lasts; None where no namespace is configured.

    Raises:
        UsageError: the connection string cannot be read.
    """
    if not has_bus(arguments, os.environ):
        yield None
        return
    async with open_bus(read_bus(arguments, os.environ)) as bus:
        yield bus


@asynccontextmanager
async def open_bus(endpoint: Endpoint) -> AsyncIterator[OperatorBus]:
    """Open the bus as long as this lasts.

    Raises:
        UsageError: the connection string cannot be read.
    """
    from sas.adapters.queues import OperatorServiceBus  # noqa: PLC0415  # slow to import

    try:
        bus = OperatorServiceBus.connect(endpoint)
    except ValueError as wrong:
        raise UsageError(unreadable(wrong)) from None
    try:
        yield bus
    finally:
        await bus.close()


def unreadable(wrong: ValueError) -> str:
    """Say that a Service Bus connection string cannot be read, and how one looks."""
    return (
        f"the connection string cannot be read: {wrong} It looks like "
        "Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=...;SharedAccessKey=..."
    )
