"""The class of a verb, and what verbs share: the namespace, the table, arguments with numbers."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
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
from sas.domain.order import Order
from sas.domain.queues import ForbiddenReplyQueueError, Queues
from sas.environment import (
    CONNECTION,
    NOTHING,
    OF_TABLES,
    StackError,
    here,
    names_a_system,
    service_bus,
)
from sas.operate import finding
from sas.operate.errors import (
    CommandError,
    NotPossibleError,
    ServiceUnavailableError,
    UsageError,
)
from sas.ports import (
    OperatorBus,
    OtherVersionError,
    StateStore,
    StoreMismatchError,
    StoreUnavailableError,
)

Work = Callable[[StateStore], Awaitable[int]]
"""A function of a verb that works on the store and returns the exit code."""
REPLY_QUEUE = "SAS_REPLY_QUEUE"
LOAD_S = 10.0
"""How long orders are loaded at most for a verb that can do without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """A verb of the command ``sas``. ``run`` returns the exit code.

    ``connects`` is False for a verb that needs no system, so the environment need not name one.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    connects: bool = True

    @classmethod
    def with_store(
        cls,
        name: str,
        summary: str,
        *,
        description: str,
        add_arguments: Callable[[argparse.ArgumentParser], None],
        prepare: Callable[[argparse.Namespace], Work],
    ) -> Subcommand:
        """Return a verb that needs the state store.

        ``prepare`` checks the arguments before the store is opened. It returns the work on it.
        """

        def run(arguments: argparse.Namespace) -> int:
            storage = read_storage(os.environ)
            return asyncio.run(_with_store(storage, prepare(arguments)))

        return cls(
            name=name,
            summary=summary,
            description=description,
            add_arguments=add_arguments,
            run=run,
        )


async def _with_store(storage: Storage, work: Work) -> int:
    async with open_store(storage) as store:
        return await work(store)


@contextmanager
def system_environment(verb: Subcommand) -> Iterator[None]:
    """Give the process the settings of the system that the verb works on.

    If the environment names no system, the settings come from the stack that runs here, if any. At
    the end of this context, the environment is as it was before.

    Raises:
        UsageError: the file with the settings of the stack cannot be used.
    """
    if not verb.connects:
        yield
        return
    try:
        system = here()
    except StackError as error:
        raise UsageError(str(error)) from None
    if system.stack and output.columns(sys.stderr):
        output.complain(f"sas: using {system.stack}")
    before = dict(os.environ)
    os.environ.update(system.settings)
    try:
        yield
    finally:
        for name in system.settings.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@dataclass(frozen=True, slots=True, kw_only=True)
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


def number(
    noun: str, minimum: float, maximum: float, *, whole: bool = False
) -> Callable[[str], float]:
    """Return the ``type`` of an argument that is a number within these bounds."""

    def read(text: str) -> float:
        try:
            value = int(text) if whole and text.isascii() and len(text) <= 9 else float(text)
        except ValueError:
            value = float("nan")
        if not minimum <= value <= maximum or (whole and not isinstance(value, int)):
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r}: give {noun} from {minimum:g} to {maximum:,.0f}"
            )
        return value

    return read


def add_json(parser: argparse.ArgumentParser, content: str = "JSON lines instead of text") -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help=f"print {content}")


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


@asynccontextmanager
async def open_store(storage: Storage) -> AsyncIterator[StateStore]:
    """Open the state store as long as this context lasts.

    Raises:
        UsageError: the connection string cannot be read.
        NotPossibleError: there is no such table.
        ServiceUnavailableError: the account did not answer, or the table cannot be read by this
            version; now, or later in this context.
    """
    # Slow to import (Azure's SDK), and not needed for --help.
    from sas.adapters.tables.store import NoStoreError, connect_existing  # noqa: PLC0415

    try:
        store = await connect_existing(storage.endpoint, storage.table)
    except NoStoreError as error:
        raise NotPossibleError(str(error)) from None
    except (StoreUnavailableError, OtherVersionError, StoreMismatchError) as error:
        raise ServiceUnavailableError(str(error)) from None
    except ValueError as error:
        raise UsageError(
            f"the storage connection string cannot be read: {str(error).rstrip('.')}. It looks "
            "like DefaultEndpointsProtocol=https;AccountName=...;AccountKey=...;"
            "EndpointSuffix=core.windows.net"
        ) from None
    try:
        yield store
    except (StoreUnavailableError, OtherVersionError, StoreMismatchError) as error:
        raise ServiceUnavailableError(str(error)) from None
    finally:
        await store.close()


async def load_if_possible(order_ids: Sequence[str]) -> dict[str, Order]:
    """Return these orders by id, for a verb that can do without them; none without a table.

    If the table cannot be read soon, this prints why.
    """
    try:
        storage = read_storage(os.environ)
    except (UsageError, SettingError):
        return {}
    try:
        async with asyncio.timeout(LOAD_S), open_store(storage) as store:
            orders = await finding.load_all(store, order_ids)
    except TimeoutError:
        problem = f"the table did not answer within {LOAD_S:g} s"
    except CommandError as error:
        problem = str(error)
    else:
        return {order.order_id: order for order in orders}
    output.complain(f"sas: the state of the orders is not known: {output.one_line(problem)}")
    return {}


def read_connection(reply_queue: str | None, env: Mapping[str, str]) -> Connection:
    """Return the namespace that the environment names, and the response queue to use.

    If ``reply_queue`` is None, the environment names the response queue too.

    Raises:
        UsageError: the namespace or the response queue is missing, or cannot exist.
    """
    queues = read_queues(env)
    reply_queue = reply_queue or env.get(REPLY_QUEUE)
    if not reply_queue:
        raise UsageError(
            f"no reply queue: give --reply-queue {queues.response_prefix}NAME or set {REPLY_QUEUE}"
        )
    try:
        queues.check_reply_queue(reply_queue)
    except ForbiddenReplyQueueError as error:
        raise UsageError(str(error)) from None
    return Connection(
        endpoint=read_bus(env),
        reply_queue=reply_queue,
        queues=queues,
        order_bytes_max=read_order_bytes_max(env),
    )


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


@asynccontextmanager
async def open_bus_if_any() -> AsyncIterator[OperatorBus | None]:
    """Open the bus as long as this context lasts; None if no namespace is configured.

    Raises:
        UsageError: the connection string cannot be read.
    """
    if not service_bus(os.environ):
        yield None
        return
    async with open_bus(read_bus(os.environ)) as bus:
        yield bus


@asynccontextmanager
async def open_bus(endpoint: Endpoint) -> AsyncIterator[OperatorBus]:
    """Open the bus as long as this context lasts.

    Raises:
        UsageError: the connection string cannot be read.
    """
    from sas.adapters.queues import OperatorServiceBus  # noqa: PLC0415  # slow to import

    try:
        bus = OperatorServiceBus.connect(endpoint)
    except ValueError as error:
        raise UsageError(unreadable(error)) from None
    try:
        yield bus
    finally:
        await bus.close()


def unreadable(error: ValueError) -> str:
    """Return the sentence that a connection string of Service Bus cannot be read."""
    return (
        f"the connection string cannot be read: {error} It looks like "
        "Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=...;SharedAccessKey=..."
    )
