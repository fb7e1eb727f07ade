"""The names of the queues, and which names an application may choose for its responses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sas.domain.ids import URGENT_SUFFIX

_REPLY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
QUEUE_NAME_LENGTH_MAX = 200
DEAD_LETTER_SUBQUEUE = "/$DeadLetterQueue"
"""Behind the name of a queue: the messages that it gave up."""


class ForbiddenReplyQueueError(ValueError):
    """An order names a reply queue that is not an application's."""


def lane(queue: str, *, urgent: bool) -> str:
    """Return the queue itself, or its lane for urgent orders."""
    return queue + URGENT_SUFFIX if urgent else queue


@dataclass(frozen=True, slots=True)
class Queues:
    """Every queue of the system.

    The queues that an order passes (orders, scheduler, replies, callbacks, agents) each have a
    second lane for urgent orders: a separate queue with a separate function. So urgent orders never
    wait for ordinary ones.
    """

    orders: str = "orders"
    scheduler: str = "scheduler"
    replies: str = "agent-replies"
    alerts: str = "operator-alerts"
    rejected: str = "orders-rejected"
    dead_letters: str = "dead-letters"
    agent_prefix: str = "agent-"
    response_prefix: str = "responses-"
    callbacks: str = "callbacks"

    def agent(self, name: str, *, urgent: bool = False) -> str:
        """Return the request queue of an agent."""
        return lane(self.agent_prefix + name, urgent=urgent)

    @property
    def urgent(self) -> Queues:
        """Return these queues for an application that submits urgent orders."""
        return replace(self, orders=lane(self.orders, urgent=True))

    def on_the_way(self, agents: Iterable[str]) -> tuple[str, ...]:
        """Return the queues that orders pass with these agents, in both lanes."""
        fixed = (self.orders, self.scheduler, self.replies, self.callbacks)
        ordinary = (*fixed, *map(self.agent, agents))
        return (*ordinary, *(lane(queue, urgent=True) for queue in ordinary))

    def twice(self, agents: Iterable[str]) -> str | None:
        """Return a queue with two purposes, such as that of an agent named ``replies``, if any."""
        names = [*self.on_the_way(agents), self.alerts, self.rejected, self.dead_letters]
        return next((name for name in names if names.count(name) > 1), None)

    def check_reply_queue(self, name: str) -> str:
        """Return ``name`` if it can be the reply queue of an application.

        The prefix prevents a sender from naming one of the system's own queues.

        Raises:
            ForbiddenReplyQueueError: it cannot. The message says which names are allowed.
        """
        fits = (
            name.startswith(self.response_prefix)
            and len(name) > len(self.response_prefix)
            and len(name) <= QUEUE_NAME_LENGTH_MAX
            and _REPLY_NAME.fullmatch(name)
        )
        if not fits:
            raise ForbiddenReplyQueueError(
                f"reply_queue {name[:QUEUE_NAME_LENGTH_MAX]!r} is not an application's queue: its "
                f"name must begin with {self.response_prefix!r} and hold letters, digits, . _ -"
            )
        return name
