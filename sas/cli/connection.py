"""Which namespace a command speaks to, from its arguments and the environment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from sas.adapters.endpoints import Endpoint
from sas.cli.errors import UsageError
from sas.config import CONNECTION, read_order_bytes_max, read_queues
from sas.domain.queues import ForbiddenReplyQueueError, Queues

REPLY_QUEUE = "SAS_REPLY_QUEUE"


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection string, or the name of a namespace for whoever is signed in to Azure."""

    connection_string: str | None
    namespace: str | None
    reply_queue: str
    queues: Queues
    order_bytes_max: int


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add the argument that every verb has which speaks to Service Bus."""
    parser.add_argument(
        "--connection",
        metavar="TEXT",
        help=f"Service Bus connection string, or a namespace's host name to sign in to with "
        f"azure-identity (default: the environment's {CONNECTION}, or "
        f"{CONNECTION}__fullyQualifiedNamespace). A key is better kept in the environment: "
        "arguments can be seen by others on the machine",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a verb that is answered on an application's own queue."""
    add_connection(parser)
    parser.add_argument(
        "--reply-queue",
        metavar="QUEUE",
        help=f"your application's own response queue (default: the environment's {REPLY_QUEUE})",
    )


def read(arguments: argparse.Namespace, env: Mapping[str, str]) -> Connection:
    """Return what the arguments and the environment say.

    Raises:
        UsageError: nothing is said, or what is said cannot be.
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
    text, namespace = _address(arguments.connection, env)
    return Connection(text, namespace, reply_queue, queues, read_order_bytes_max(env))


def read_bus(arguments: argparse.Namespace, env: Mapping[str, str]) -> Endpoint:
    """Return the Service Bus that the arguments and the environment name.

    Raises:
        UsageError: nothing is said, or what is said cannot be.
    """
    text, namespace = _address(arguments.connection, env)
    return Endpoint(connection_string=text, address=namespace)


def _address(given: str | None, env: Mapping[str, str]) -> tuple[str | None, str | None]:
    text = given or env.get(CONNECTION) or env.get(f"AzureWebJobs{CONNECTION}")
    if text and "=" in text:
        return text, None
    namespace = text or env.get(f"{CONNECTION}__fullyQualifiedNamespace")
    if not namespace:
        raise UsageError(
            f"no connection: give --connection or set {CONNECTION} to a Service Bus "
            "connection string (the portal shows it under Shared access policies)"
        )
    if "." not in namespace or "/" in namespace:
        raise UsageError(
            f"connection {namespace[:80]!r} is neither a connection string (Endpoint=sb://...) "
            "nor a namespace's host name (NAME.servicebus.windows.net)"
        )
    return None, namespace
