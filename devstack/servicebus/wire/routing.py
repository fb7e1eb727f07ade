"""From an attach to the link that serves it: which node, which entity, and who may."""

from typing import TYPE_CHECKING

from devstack.servicebus.core.errors import (
    EntityNotFoundError,
    ServerBusyError,
    UnauthorizedError,
)
from devstack.servicebus.core.namespace import MANAGEMENT
from devstack.servicebus.tokens import path_of
from devstack.servicebus.wire.attach import Attach
from devstack.servicebus.wire.inlets import QueueInlet, RequestInlet
from devstack.servicebus.wire.link import Link
from devstack.servicebus.wire.outlets import QueueOutlet, ReplyOutlet

if TYPE_CHECKING:
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


def _check_claims(session: "AmqpSession", path: str, now: float) -> None:
    if not session.hub.gate.closed:
        return
    if not any(claim.covers(path, now) for claim in session.wire.claims):
        raise UnauthorizedError(
            f"Unauthorized access to '{path[:200]}': put a token for it on $cbs first, signed "
            "with the key given to --require-key"
        )
