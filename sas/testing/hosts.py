"""One instance of the real application over the ports in memory, as a host runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sas.bootstrap import Application, assemble
from sas.domain.ids import digest_id
from sas.domain.queues import lane
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.kept_orders import KeptOrders
from sas.engine.retry import RetryPolicy
from sas.engine.run_on import Handler as Handle
from sas.features.callbacks.codec import CallbackKeys
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.ports import Business, Message, MessageBus, StateStore
from sas.testing.bus import DEAD_LETTERS, Queued
from sas.testing.clock import VirtualClock
from sas.testing.own_agents import KEY_OF_CALLBACKS, URL_OF_CALLBACKS
from sas.testing.platform import QUEUES
from sas.testing.settings import settings
from sas.testing.world import Handler, World

KEYS = CallbackKeys((KEY_OF_CALLBACKS,), URL_OF_CALLBACKS)
BREAKER = BreakerPolicy(
    failures_max=3,
    open_for=timedelta(seconds=3),
    open_for_max=timedelta(seconds=20),
    probe_for=timedelta(seconds=8),
)
"""Short times, so that circuits open and close often within the time of a step."""


@dataclass
class ClockApart:
    """The clock of one instance, some seconds ahead of the others."""

    clock: VirtualClock
    seconds: float = 0.0

    def now(self) -> datetime:
        """See ``Clock.now``."""
        now = self.clock.now()
        return now + timedelta(seconds=self.seconds) if self.seconds else now

    async def sleep(self, seconds: float) -> None:
        """See ``Clock.sleep``."""
        await self.clock.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """See ``Clock.timeout``."""
        return self.clock.timeout(seconds)


class Host:
    """The functions of one instance. ``start`` makes new ones, which remember nothing.

    About one instance in four keeps no orders in memory, and reads each order from the store every
    time. Unless the functions of an adopter are played (``is_script``), about one agent in three is
    called inline, circuits open and close within seconds, and agents retry quickly. So all cases
    are simulated.
    """

    def __init__(
        self,
        world: World,
        name: str,
        business: Business,
        *,
        breaker: BreakerPolicy = BREAKER,
        store: StateStore | None = None,
        bus: MessageBus | None = None,
        is_script: bool = False,
    ) -> None:
        if not is_script:
            digests = {name: int(digest_id(str(world.seed), name), 16) for name in business.agents}
            inline = [name for name, digest in digests.items() if digest % 3 == 0]
            business = replace(business, inline=inline)
        self._world = world
        self.business, self.clock = business, ClockApart(world.clock)
        self._store, self._bus = store or world.store, bus or world.bus_of(self.clock)
        self._name, self._starts = name, 0
        self._policies: dict[str, Any] = (
            {"circuit": BreakerPolicy(), "retry": RetryPolicy()}
            if is_script
            else {"circuit": breaker}
        )
        self._reads_all = int(digest_id(str(world.seed), name), 16) % 4 == 0
        self.start()

    def start(self) -> None:
        """See ``Functions.start``."""
        self._starts += 1
        name = f"{self._name}.{self._starts}"
        config = settings(name, queues=QUEUES, callback_keys=KEYS, **self._policies)
        kept_orders = KeptOrders(0) if self._reads_all else None
        app = assemble(
            self._store,
            self._bus,
            clock=self.clock,
            business=self.business,
            settings=config,
            kept_orders=kept_orders,
        )
        run_on = app.context.run_on
        run_on.handlers = {
            queue: self._watched(queue, handler) for queue, handler in run_on.handlers.items()
        }
        self.context: Context = app.context
        self.callbacks, self._supervisor = app.callbacks, app.supervisor
        self.handlers: dict[str, Handler] = _handlers(app, self.business)

    def _watched(self, queue: str, handle: Handle) -> Handle:
        """Return a handler to which messages are handed over as if they were sent and delivered."""

        async def handed_over(delivery: Delivery) -> object:
            if delivery.is_first:  # later attempts are redeliveries
                message = Message(queue, delivery.message_id, delivery.body)
                self._world.on_sends(message, self.clock.now())
            await self._world.pause()
            return await handle(delivery)

        return handed_over

    async def sweep(self) -> object:
        """See ``Functions.sweep``."""
        return await self._supervisor.sweep()


def _handlers(app: Application, business: Business) -> dict[str, Handler]:
    def handler(handle: Callable[[Delivery], Awaitable[object]]) -> Handler:
        return lambda queued: app.receiver.receive(handle, delivery(queued))

    handlers = {
        QUEUES.dead_letters: handler(app.dead_letters.handle),
        QUEUES.dead_letters + DEAD_LETTERS: handler(app.dead_letters.handle),
    }
    for urgent in (False, True):
        handlers[lane(QUEUES.orders, urgent=urgent)] = handler(app.submitter.handle)
        handlers[lane(QUEUES.scheduler, urgent=urgent)] = handler(app.scheduler.handle)
        for name in business.agents:
            handlers[QUEUES.agent(name, urgent=urgent)] = handler(app.agents[name].handle)
    return handlers


def delivery(queued: Queued) -> Delivery:
    """Return a message as a host hands it over."""
    message = queued.message
    return Delivery(
        body=message.body,
        message_id=message.message_id,
        queue=message.queue.removesuffix(DEAD_LETTERS),
        urgent=message.queue.endswith("-urgent"),
        properties=message.properties,
        count=queued.deliveries,
        enqueued_at=queued.visible_at,
        source_queue=queued.source,
    )
