"""An application's own queue of orders: its response queue and its order ids are bound to it."""

from __future__ import annotations

import json
import os
from unittest import mock
from unittest.mock import AsyncMock

import pytest

from sas.engine.delivery import Delivery
from sas.features.incidents.board import RESPONSE_QUEUES_MAX
from sas.operate import redriving
from sas.operate.letters import letter_of
from sas.ports import BusUnavailableError, StoreUnavailableError
from tests import indexed_functions
from tests.unit.actors_kit import Kit, order
from tests.unit.bound_kit import BOUND, OTHER, SHOP, WEB, bound_system, come


def notices_of(system: Kit) -> dict[str, list[str]]:
    return {queue: system.notices(queue) for queue in (WEB, SHOP, OTHER) if system.notices(queue)}


@pytest.mark.parametrize("queue", ["orders-web", "orders-web-urgent"])
async def test_an_order_of_a_bound_application_is_worked_on_and_notified_on_its_own_queue(
    queue: str,
) -> None:
    system = bound_system()
    await come(system, order("web-1", reply_queue=WEB), queue)
    assert system.state("web-1") == "Pending"
    assert system.order("web-1").details.urgent is queue.endswith("-urgent")
    assert notices_of(system) == {WEB: ["received"]}


async def test_an_order_of_the_shared_queue_is_worked_on_as_before() -> None:
    system = bound_system()
    await come(system, order("O-1", reply_queue=OTHER), "orders")
    assert notices_of(system) == {OTHER: ["received"]}


async def test_an_order_that_its_own_queue_gave_up_is_resent_as_another_submission() -> None:
    system = bound_system()
    body = order("web-1", reply_queue=WEB, submission_id="s-1")
    await come(system, body, "orders-web", dead=True)
    given_up = await system.bus.peek(BOUND.rejected, 10)
    letters = [letter_of(BOUND.rejected, message, BOUND) for message in given_up]
    plan = redriving.resend(letters, BOUND, "orders-web")
    assert (plan.staying, len(plan.moves)) == ([], 1)
    message = plan.moves[0].move.message
    assert message is not None
    assert json.loads(message.body)["submission_id"] == message.message_id
    await come(system, message.body, "orders-web")
    assert system.state("web-1") == "Pending"


@pytest.mark.parametrize("dead", [False, True])
async def test_an_application_cannot_aim_notifications_at_another(*, dead: bool) -> None:
    for reply_queue in (SHOP, OTHER, "Responses-web", "responses-WEB", "orders"):
        system = bound_system()
        await come(system, order("web-1", reply_queue=reply_queue), "orders-web", dead=dead)
        assert system.store.orders == {}
        assert notices_of(system) == {WEB: ["rejected"]}
        assert len(system.rejected()) == len(system.alerts()) == 1


@pytest.mark.parametrize("queue", ["orders-web", "orders-web-urgent", "orders", "dead-letters"])
async def test_a_message_that_must_wait_and_is_too_large_to_be_put_back_is_rejected_at_once(
    queue: str,
) -> None:
    """Its function kept its slot for a minute, and 32 such messages stopped the queue for all."""
    system = bound_system()
    system.bus.declare(queue)
    body = order("web-1", reply_queue=WEB, order={"note": "x" * 261_900})
    handler = AsyncMock(side_effect=StoreUnavailableError("away"))
    large = Delivery(body=body, message_id="m-1", queue=queue, properties={"sas_x": "x" * 4000})
    before = system.clock.now()
    assert await system.run(system.receiver.receive(handler, large)) is None
    assert system.clock.now() == before
    assert notices_of(system) == ({WEB: ["rejected"]} if queue.startswith("orders-web") else {})
    assert {part.reason for part in system.rejected()} == {"too-large"}
    assert {part.source_queue for part in system.rejected()} == {queue}
    if queue.startswith("orders"):
        assert {part.correlation_id for part in system.rejected()} == {"c-web-1"}


async def test_a_message_that_must_wait_while_its_queue_is_full_keeps_no_slot() -> None:
    """Whoever filled the queue would have stopped its functions too."""
    system = bound_system()
    system.bus.declare("orders", length_max=0)
    handler = AsyncMock(side_effect=BusUnavailableError("away"))
    delivery = Delivery(body=order("O-1", reply_queue=OTHER), message_id="m-1", queue="orders")
    before = system.clock.now()
    assert await system.run(system.receiver.receive(handler, delivery)) is None
    assert system.clock.now() == before
    (waiting,) = await system.store.held("orders", 10)
    assert waiting.message.body == delivery.body


@pytest.mark.parametrize("dead", [False, True])
async def test_an_application_cannot_take_an_id_that_is_not_its_own(*, dead: bool) -> None:
    for order_id in ("shop-1", "O-1", "web", "WEB-1", "webshop-1"):
        system = bound_system()
        await come(system, order(order_id, reply_queue=WEB), "orders-web", dead=dead)
        assert system.store.orders == {}
        assert notices_of(system) == {WEB: ["rejected"]}
        await come(system, order("shop-1", reply_queue=SHOP), "orders-shop")
        assert notices_of(system)[SHOP] == ["received"]


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("queue", ["orders", "orders-urgent"])
async def test_the_shared_queue_takes_neither_a_bound_response_queue_nor_a_bound_id(
    queue: str, *, dead: bool
) -> None:
    for order_id, reply_queue in (("O-1", WEB), ("O-1", "responses-WEB"), ("web-1", OTHER)):
        system = bound_system()
        await come(system, order(order_id, reply_queue=reply_queue), queue, dead=dead)
        assert system.store.orders == {}
        assert set(notices_of(system)) <= {OTHER}
        assert len(system.rejected()) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"order_id": NaN, "reply_queue": "responses-shop"}',
        json.dumps({"order_id": "shop-1", "reply_queue": SHOP}).encode(),
        order("web-1", reply_queue=SHOP, workflow="none"),
    ],
)
async def test_a_rejection_before_the_order_is_read_goes_to_the_queues_own_application(
    body: bytes,
) -> None:
    system = bound_system()
    await come(system, body, "orders-web")
    assert notices_of(system) == {WEB: ["rejected"]}
    await come(system, body, "orders")
    assert notices_of(system) == {WEB: ["rejected"]}


@pytest.mark.parametrize("queue", ["orders-web", "orders-web-urgent", "Orders-WEB"])
async def test_an_order_given_up_is_notified_on_its_own_queue(queue: str) -> None:
    system = bound_system()
    await come(system, order("web-1", reply_queue=WEB), queue, dead=True)
    assert system.state("web-1") == "Rejected"
    assert notices_of(system) == {WEB: ["rejected"]}


async def test_an_order_of_another_applications_id_does_not_hinder_it() -> None:
    """It got a notification of an order that it never placed, and its own order was rejected."""
    system = bound_system()
    await come(system, order("web-1", reply_queue=WEB, order={"a": 1}), "orders-shop")
    await come(system, order("web-1", reply_queue=WEB, order={"b": 1}), "orders")
    assert notices_of(system) == {SHOP: ["rejected"]}
    await come(system, order("web-1", reply_queue=WEB), "orders-web")
    assert notices_of(system)[WEB] == ["received"]


def test_each_application_of_the_setting_has_a_function_for_each_lane() -> None:
    with mock.patch.dict(os.environ, {"SAS_APPLICATIONS": "web,shop-2"}):
        app = indexed_functions.module.__wrapped__().app
    bound = {
        function.get_function_name(): json.loads(function.get_function_json())["bindings"][0]
        for function in app.get_functions()
    }
    queues = {name: binding["queueName"] for name, binding in bound.items() if "submission" in name}
    assert queues == {
        "submission": "%SAS_QUEUE_ORDERS%",
        "submission_urgent": "%SAS_QUEUE_ORDERS%-urgent",
        "submission_web": "%SAS_QUEUE_ORDERS%-web",
        "submission_web_urgent": "%SAS_QUEUE_ORDERS%-web-urgent",
        "submission_shop_2": "%SAS_QUEUE_ORDERS%-shop-2",
        "submission_shop_2_urgent": "%SAS_QUEUE_ORDERS%-shop-2-urgent",
    }


async def test_queues_that_others_make_up_hide_no_incident_of_a_bound_applications_queue() -> None:
    """Past a bound, all other response queues shared one incident and its alerts."""
    system = bound_system()
    for number in range(RESPONSE_QUEUES_MAX + 1):
        await system.context.rejections.give_up_notification(f"responses-{number}", "O-1", "ends")
    for queue in (WEB, SHOP):
        await system.context.rejections.give_up_notification(queue, "web-1", "is not read")
    scopes = [alert.scope for alert in system.alerts()]
    assert scopes[-3:] == ["other response queues", f"queue {WEB}", f"queue {SHOP}"]
