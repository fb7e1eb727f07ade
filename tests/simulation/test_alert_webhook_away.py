"""The webhook of alerts is away for days: every alert arrives in the end, and no order waits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pytest

from sas.bootstrap import actors
from sas.domain.order import OrderState
from sas.features.alert_webhook import AlertCopies, Webhook
from sas.testing.clock import START
from sas.testing.platform import QUEUES
from sas.testing.remote import RemoteFaults
from sas.testing.system import BREAKER, KEYS, delivery
from sas.testing.world import Faults
from tests.long import seeds
from tests.simulation.system import System, build, check_end

AWAY_FOR = timedelta(days=3)
END = START + AWAY_FOR
ORDERS = 6
REFUSING = RemoteFaults(refused=0.3)


class Receiver:
    """A webhook that answers from a moment on. It remembers what it took, by id."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.taken: dict[str, bytes] = {}
        self.refused = 0

    async def post(self, _url: str, headers: Mapping[str, str], body: bytes) -> str:
        await self._system.world.pause()
        if self._system.world.clock.now() - START < AWAY_FOR:
            self.refused += 1
            return "answered 503"
        self.taken[headers["webhook-id"]] = body
        return ""


def with_webhook(system: System, receiver: Receiver) -> None:
    """Give every instance the feature, as ``sas.bootstrap`` does."""
    for host in system.hosts:
        host._bus = AlertCopies(host._store, host._bus, host.clock, QUEUES)
        start = host.start

        def started(host=host, start=start) -> None:  # type: ignore[no-untyped-def]
            start()
            app = actors(
                host.context,
                host.business,
                policy=None,  # type: ignore[arg-type]  # its agents do not run
                circuit=BREAKER,
                callback_keys=KEYS,
                webhook=Webhook("https://alerts.example.com", (b"k" * 32,)),
                post_alert=receiver.post,
            )
            post = app.alert_webhook.handle
            host.handlers[QUEUES.alert_copies] = lambda one: app.receive(post, delivery(one))

        host.__dict__["start"] = started
        started()


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_alerts_wait_for_days_and_all_arrive_while_no_order_waits(seed: int) -> None:
    system = build(seed, Faults(crash=0.01, bus_down=0.02), REFUSING, clocks_apart=(0.0, 0.5))
    receiver = Receiver(system)
    with_webhook(system, receiver)
    system.world.timer_idle = timedelta(minutes=30)
    for number in range(ORDERS):
        system.submit(f"O-{number}", "order-with-care")
    await system.world.run(system.at_rest, 24 * 5)
    check_end(system)
    orders = [stored.order for stored in system.store.orders.values()]
    assert any(order.process_state is OrderState.ERROR for order in orders)
    assert all((order.settled_at or END) - START < timedelta(hours=1) for order in orders)

    alerts = {one.message_id: one.body for one in system.bus.messages(QUEUES.alerts)}
    assert sorted(receiver.taken.values()) == sorted(alerts.values())
    assert receiver.refused > 100 * len(alerts)
    assert system.world.clock.now() - START < AWAY_FOR + timedelta(hours=1)
    await system.close()
