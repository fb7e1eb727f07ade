"""From an attach to the link that serves it: which node, which entity, who may, how long."""

from typing import TYPE_CHECKING

from devstack.servicebus.core.errors import (
    EntityNotFoundError,
    ServerBusyError,
    UnauthorizedError,
)
from devstack.servicebus.core.namespace import MANAGEMENT
from devstack.servicebus.tokens import path_of
from devstack.servicebus.wire.attach import Attach
from devstack.servicebus.wire.hub import Wire
from devstack.servicebus.wire.inlets import QueueInlet, RequestInlet
from devstack.servicebus.wire.link import Link
from devstack.servicebus.wire.outlets import QueueOutlet, ReplyOutlet

if TYPE_CHECKING:
    from devstack.servicebus.wire.connection import AmqpConnection
    from devstack.servicebus.wire.session import AmqpSession

CBS = "$cbs"


def make_link(session: "AmqpSession", attach: Attach, handle: int, now: float) -> Link:
    """Build the link for an attach.

    Raises EntityNotFoundError, UnauthorizedError (where tokens are checked), ServerBusyError.
    """
    if attach.address is None:
        raise EntityNotFoundError("the link names no entity; give the queue's name as its address")
    path = path_of(attach.address)
    node = path.lower()
    if node == CBS:
        if attach.receives:
            return ReplyOutlet(session, attach, handle, None, CBS)
        return RequestInlet(session, attach, handle, None, CBS)
    _check_claims(session, path, now)
    manages = node.endswith(MANAGEMENT)
    queue = session.hub.namespace.find(path[: -len(MANAGEMENT)] if manages else path)
    faults = session.hub.faults
    if faults.armed and faults.take("server-busy", queue.name, "attach"):
        raise ServerBusyError(f"queue '{queue.name}' is busy; wait a moment and try again")
    if manages:
        if attach.receives:
            return ReplyOutlet(session, attach, handle, queue, node)
        return RequestInlet(session, attach, handle, queue, node)
    if attach.receives:
        return QueueOutlet(session, attach, handle, queue)
    return QueueInlet(session, attach, handle, queue)


def end_expired(connection: "AmqpConnection", now: float) -> None:
    """End the links of a connection whose token has expired and was not renewed.

    Condition and code are those of the service: a client that puts a new token may come back.
    """
    for session in connection.sessions.values():
        for link in list(session.links.values()):
            path = path_of(link.attach.address or "")
            if link.queue is None or link.ended or _has_claim(connection, path, now):
                continue
            link.detach(
                "amqp:link:detach-forced",
                f"The link '{link.name[:200]}' is force detached. Code: RenewToken. Details: "
                f"Unauthorized access to '{path[:200]}': the token has expired; put a new one on "
                "$cbs and open the link again.",
            )


def _check_claims(session: "AmqpSession", path: str, now: float) -> None:
    if session.hub.gate.closed and not _has_claim(session.wire, path, now):
        raise UnauthorizedError(
            f"Unauthorized access to '{path[:200]}': put a token for it on $cbs first, signed "
            "with the key given to --require-key"
        )


def _has_claim(wire: Wire, path: str, now: float) -> bool:
    return any(claim.covers(path, now) for claim in wire.claims)
