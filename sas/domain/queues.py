"""The names of the queues, and which names an application may choose for its responses.

Service Bus delivers in order of arrival and has no priorities. So each queue that an order passes
has an urgent twin. An order is urgent because it was put on ``orders-urgent``: no member of its
message says so. The order stores its lane, and its messages stay in it. Causes name the ordinary
queue, so an order that was sent by both lanes is still one order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sas.domain.ids import URGENT_SUFFIX, InvalidIdError

QUEUE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
"""Service Bus also allows a ``/``. Table Storage forbids it in keys, which hold queue names."""
QUEUE_NAME_LENGTH_MAX = 200
DEAD_LETTER_SUBQUEUE = "/$DeadLetterQueue"
"""Suffix of a queue's name: the subqueue of the messages that the queue gave up."""

SCOPE_LENGTH_MAX = 128
"""Longest scope of an incident, as the contract of alerts says."""


class ForbiddenReplyQueueError(ValueError):
    """An order names a reply queue that is not an application's."""


def lane(queue: str, *, urgent: bool) -> str:
    """Return the queue itself, or its lane for urgent orders."""
    return queue + URGENT_SUFFIX if urgent else queue


def scope_of(queue: str) -> str:
    """Return the scope of the incident of a queue."""
    return f"queue {queue}"[:SCOPE_LENGTH_MAX]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Every queue of the system.

    The queues that an order passes (orders, scheduler, agents) each have a second lane for urgent
    orders: a separate queue with a separate function. So urgent orders never wait for ordinary
    ones. ``scheduler`` has what waits for the state store alone: wakes, commands, replies and
    callbacks.

    Each of ``applications`` sends its orders to a queue of its own, ``orders-<application>``. Its
    response queue ``responses-<application>`` and order ids that begin with ``<application>-`` are
    bound to that queue: no other sender can use them.
    """

    orders: str = "orders"
    scheduler: str = "scheduler"
    alerts: str = "operator-alerts"
    rejected: str = "orders-rejected"
    dead_letters: str = "dead-letters"
    agent_prefix: str = "agent-"
    response_prefix: str = "responses-"
    applications: tuple[str, ...] = ()

    def agent(self, name: str, *, urgent: bool = False) -> str:
        """Return the request queue of an agent."""
        return lane(self.agent_prefix + name, urgent=urgent)

    @property
    def urgent(self) -> Queues:
        """Return these queues for an application that submits urgent orders."""
        return replace(self, orders=lane(self.orders, urgent=True))

    def of_orders(self) -> tuple[str, ...]:
        """Return the queues to which applications send orders, in both lanes."""
        ordinary = (self.orders, *map(self.orders_of, self.applications))
        return (*ordinary, *(lane(queue, urgent=True) for queue in ordinary))

    def on_the_way(self, agents: Iterable[str]) -> tuple[str, ...]:
        """Return the queues that orders pass with these agents, in both lanes."""
        bound = (self.orders_of(application) for application in self.applications)
        ordinary = (self.orders, *bound, self.scheduler, *map(self.agent, agents))
        return (*ordinary, *(lane(queue, urgent=True) for queue in ordinary))

    def twice(self, agents: Iterable[str]) -> str | None:
        """Return a queue with two purposes, such as that of an agent, if any."""
        names = [name.lower() for name in self.own(agents)]  # as Service Bus compares them
        return next((name for name in names if names.count(name) > 1), None)

    def own(self, agents: Iterable[str] = ()) -> tuple[str, ...]:
        """Return every queue of the system with these agents, without the response queues."""
        for_operators = (self.alerts, self.rejected, self.dead_letters)
        return (*self.on_the_way(agents), *for_operators)

    def orders_of(self, application: str) -> str:
        """Return the queue to which only this application sends its orders."""
        return f"{self.orders}-{application}"

    def response_of(self, application: str) -> str:
        """Return the response queue of an application."""
        return f"{self.response_prefix}{application}"

    def takes_orders(self, queue: str) -> bool:
        """Return whether orders come by this queue."""
        shared = {self.orders, lane(self.orders, urgent=True)}
        return queue in shared or self.application_of(queue) is not None

    def application_of(self, queue: str) -> str | None:
        """Return the application to which a queue of orders is bound; None for a shared one."""
        ordinary = queue.removesuffix(URGENT_SUFFIX)
        bound = (name for name in self.applications if self.orders_of(name) == ordinary)
        return next(bound, None)

    def is_response(self, queue: str) -> bool:
        """Return whether a queue is an application's own, for its responses."""
        return queue.lower().startswith(self.response_prefix.lower())  # as Service Bus compares

    def orders_for(self, order_id: str) -> str:
        """Return the queue by which an order with this id comes."""
        owner = self._owner_of(order_id)
        return self.orders if owner is None else self.orders_of(owner)

    def _owner_of(self, order_id: str) -> str | None:
        """Return the application that this id is bound to."""
        return next((name for name in self.applications if order_id.startswith(f"{name}-")), None)

    def check_order_id(self, order_id: str, queue: str) -> None:
        """Check that an order that came by ``queue`` may have this id.

        Raises:
            InvalidIdError: the id is another application's, or is not the queue's own.
        """
        application = self.application_of(queue)
        owner = self._owner_of(order_id)
        if application is not None and owner != application:
            raise InvalidIdError(
                f"order_id {order_id!r} came by the queue of application {application!r}: begin "
                f"it with '{application}-'"
            )
        if owner != application:
            raise InvalidIdError(
                f"order_id {order_id!r} begins with '{owner}-', as only ids of application "
                f"{owner!r} do, which come by the queue {self.orders_of(owner or '')!r}: choose "
                "another id"
            )

    def check_reply_queue(self, name: str, queue: str = "") -> str:
        """Return ``name`` if it can be the reply queue of an order that came by ``queue``.

        The prefix prevents a sender from naming one of the system's own queues.

        Raises:
            ForbiddenReplyQueueError: it cannot. The message says which names are allowed.
        """
        application = self.application_of(queue)
        if application is not None and name != self.response_of(application):
            raise ForbiddenReplyQueueError(
                f"reply_queue {name[:QUEUE_NAME_LENGTH_MAX]!r}: orders of this queue name "
                f"{self.response_of(application)!r}"
            )
        # Service Bus compares names without case.
        bound = {self.response_of(other).lower() for other in self.applications}
        if application is None and name.lower() in bound:
            raise ForbiddenReplyQueueError(
                f"reply_queue {name!r} is bound to another queue of orders: name your own"
            )
        fits = (
            name.startswith(self.response_prefix)
            and len(name) > len(self.response_prefix)
            and len(name) <= QUEUE_NAME_LENGTH_MAX
            and QUEUE_NAME.fullmatch(name)
        )
        if not fits:
            raise ForbiddenReplyQueueError(
                f"reply_queue {name[:QUEUE_NAME_LENGTH_MAX]!r} is not an application's queue: its "
                f"name must begin with {self.response_prefix!r} and hold letters, digits, . _ -"
            )
        return name
