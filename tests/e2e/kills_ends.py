"""What came of the orders of a run: store, queues and the services' ledgers, held together."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec
from azure.servicebus.aio import ServiceBusClient

from samples.demo.tally import Tally
from samples.demo.verdict import ids_of, judge
from samples.services.contract import SERVICES
from sas.codec import external
from sas.codec.external import AlertMessage, RejectedMessage
from sas.domain.messages import Alert, Notify
from tests.e2e.kills_rig import System
from tests.functions_rig import SHOP, WHOLESALE, body_of

ROUNDS = 16
"""How often the queues are read again for missing messages."""


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Everything that was found in the end; ``wrong`` has a line for each thing that is."""

    states: Counter[str]
    transitions: Counter[str]
    problems: list[str]
    alerts: list[AlertMessage]
    rejected: list[RejectedMessage]


async def ends(deployment: System) -> Ends:
    """Return the end of every order, once every expected notification has come."""
    await deployment.settled()
    expected, alerts_expected = await _expected(deployment)
    text = deployment.stack.servicebus_connection
    async with ServiceBusClient.from_connection_string(text) as client:
        notifications = await _drain(client, [SHOP, WHOLESALE], expected)
        alerts = await _drain(client, ["operator-alerts"], alerts_expected)
        rejected = await _drain(client, ["orders-rejected"], set())
    tally = Tally(orders=len(deployment.orders))
    for body in notifications.values():
        tally.take(external.decode_notification(body))
    ledgers = {service: deployment.remote.ledger(service) for service in SERVICES}
    verdict = await judge(deployment.store, deployment.orders, tally, ledgers)
    lost = {
        where: count for where, count in (await deployment.counts()).items() if "Dead" in where[1]
    }
    assert lost, "the management port tells of no dead letters"
    problems = [
        *(f"unfinished {order_id}" for order_id in verdict.unfinished),
        *(f"not told {message_id}" for message_id in sorted(expected - set(notifications))),
        *(
            f"told, nobody knows why {message_id}"
            for message_id in sorted(set(notifications) - expected)
        ),
        *(f"doubled {effect}" for effect in verdict.doubled),
        *(f"effects: {difference}" for difference in verdict.wrong_effects),
        *(f"no alert {alert_id}" for alert_id in sorted(alerts_expected - set(alerts))),
        *(f"lost from sight: {where} {count}" for where, count in lost.items() if count),
    ]
    return Ends(
        states=verdict.states,
        transitions=verdict.transitions,
        problems=problems,
        alerts=[msgspec.json.decode(body, type=AlertMessage) for body in alerts.values()],
        rejected=[msgspec.json.decode(body, type=RejectedMessage) for body in rejected.values()],
    )


async def _expected(deployment: System) -> tuple[set[str], set[str]]:
    """Return the ids of the notifications and of the alerts that the journals hold."""
    notifications: set[str] = set()
    alerts: set[str] = set()
    for order_id in deployment.orders:
        journal = await deployment.store.journal(order_id)
        notifications.update(ids_of(Notify, order_id, journal))
        alerts.update(ids_of(Alert, order_id, journal))
    return notifications, alerts


async def _drain(
    client: ServiceBusClient, queues: Sequence[str], expected: set[str]
) -> dict[str, bytes]:
    """Take all messages of the queues by id, each id once; read again while some are missing."""
    bodies: dict[str, bytes] = {}
    async with AsyncExitStack() as stack:
        opening = [stack.enter_async_context(client.get_queue_receiver(queue)) for queue in queues]
        receivers = await asyncio.gather(*opening)
        for round_number in range(ROUNDS):
            for receiver in receivers:
                while messages := await receiver.receive_messages(500, max_wait_time=0.5):
                    for message in messages:
                        bodies[str(json.loads(body_of(message))["id"])] = body_of(message)
                        await receiver.complete_message(message)
            if expected <= set(bodies) and round_number > 0:
                break
    return bodies
