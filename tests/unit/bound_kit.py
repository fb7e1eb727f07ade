"""A system with queues of orders that are bound to applications."""

from __future__ import annotations

from sas.domain.queues import Queues
from sas.engine.delivery import Delivery
from tests.unit.actors_kit import Kit, kit, letter

BOUND = Queues(applications=("web", "shop"))
WEB, SHOP, OTHER = "responses-web", "responses-shop", "responses-other"


def bound_system() -> Kit:
    system = kit(queues=BOUND)
    system.bus.declare(OTHER)
    return system


async def come(system: Kit, body: bytes, queue: str, *, dead: bool = False) -> None:
    """Hand over an order that came by a queue, or its dead letter."""
    if dead:
        await system.run(system.dead_letters.handle(letter(body, queue)))
    else:
        urgent = queue.endswith("-urgent")
        await system.run(
            system.submitter.handle(
                Delivery(body=body, message_id="m-1", queue=queue, urgent=urgent)
            )
        )
