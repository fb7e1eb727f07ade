"""Each metric counts what it says, under the names and values that the queries ask for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.servicebus.aio import ServiceBusClient

from sas.adapters.servicebus import ServiceBus
from sas.adapters.tables.table import Meter
from sas.domain.queues import lane
from sas.engine.in_flight import CALL_STATE
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.ports import Message, RefusedError, TransientError
from sas.telemetry import metrics, tracing
from sas.telemetry.usage import Usage
from tests.indexed_functions import ROOT
from tests.telemetry_kit import Recorded, recording
from tests.unit.actors_kit import (
    QUEUES,
    Kit,
    agent_actor,
    command,
    delivery,
    done,
    kit,
    letter,
    order,
    received,
)

LISTED: dict[str, Any] = json.loads(
    (Path(ROOT) / "infra" / "telemetry-fields.json").read_text(encoding="utf-8")
)["metrics"]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with recording() as records:
        yield records


async def test_an_order_is_counted_once_for_each_state_it_comes_to(recorded: Recorded) -> None:
    system = kit()
    await system.submit()
    await system.drain()
    points = recorded.metrics()["sas.orders"]
    assert [(v, a["sas.state"], a["sas.workflow"]) for v, a in points] == [
        (1, "Pending", "chain"),
        (1, "Processing", "chain"),
        (1, "Processed", "chain"),
    ]


async def test_a_repeated_message_counts_no_order_again(recorded: Recorded) -> None:
    system = kit()
    await system.submit()
    await system.submit()
    await system.submit(message_id="m-2")
    assert recorded.count("sas.orders") == 1


async def test_an_order_rejected_by_a_dead_letter_is_counted_without_its_workflow(
    recorded: Recorded,
) -> None:
    system = kit()
    await system.run(
        system.dead_letters.handle(letter(order(workflow="a-thousand-names"), "orders"))
    )
    assert recorded.count("sas.orders", state="Rejected", workflow="unknown") == 1


async def test_a_steps_duration_is_from_its_claim_to_its_record(recorded: Recorded) -> None:
    system = kit()
    await system.submit()
    await system.later(3)
    await system.step(QUEUES.scheduler)
    await system.later(5)
    await system.hand(done())
    ((seconds, attributes),) = recorded.metrics()["sas.step.duration"]
    assert seconds == pytest.approx(5, abs=0.5)
    assert attributes == {
        "sas.workflow": "chain",
        "sas.step": "reserve",
        "sas.direction": "do",
        "sas.outcome": "done",
    }


async def test_a_step_that_is_refused_or_expires_has_a_duration_too(recorded: Recorded) -> None:
    system = kit()
    system.agents["payment"].then(RefusedError("declined", "no"))
    await system.submit()
    await system.step(QUEUES.scheduler)
    system.agents_die()
    await system.later(31)
    await system.sweep()
    await system.drain()
    assert system.state() == "Compensated"
    ends = {
        (a["sas.step"], a["sas.direction"], a["sas.outcome"])
        for _, a in recorded.metrics()["sas.step.duration"]
    }
    assert ends == {
        ("reserve", "do", "expired"),
        ("reserve", "do", "done"),
        ("pay", "do", "refused"),
        ("reserve", "undo", "done"),
        ("pay", "undo", "done"),
    }


async def test_every_attempt_is_counted_by_its_outcome(recorded: Recorded) -> None:
    system = kit()
    system.agents["stock"].then(TransientError("busy", kind="http-503"), TransientError("x"))
    await system.submit()
    await system.drain()
    assert recorded.count("sas.agent.attempts", agent="stock", outcome="transient") == 2
    assert recorded.count("sas.agent.attempts", outcome="transient", fault="http-503") == 1
    assert recorded.count("sas.agent.attempts", agent="stock", step="reserve", outcome="done") == 1
    assert recorded.count("sas.agent.attempts", agent="payment", direction="do", fault="") == 1


async def test_an_attempt_cut_off_at_complete_by_is_silent(recorded: Recorded) -> None:
    system = kit()

    async def hangs(_: object) -> None:
        await system.clock.sleep(1000)

    system.agents["stock"].then(hangs)
    await system.submit()
    await system.step(QUEUES.scheduler)
    await system.step(QUEUES.agent("stock"))
    assert recorded.count("sas.agent.attempts", outcome="silent") == 1


async def test_a_bug_in_an_agent_is_an_attempt_all_the_same(recorded: Recorded) -> None:
    system = kit()
    system.agents["stock"].then(KeyError("x"))
    await system.submit()
    await system.step(QUEUES.scheduler)
    await system.step(QUEUES.agent("stock"))
    assert recorded.count("sas.agent.attempts", outcome="transient", fault="agent-bug") == 1


async def test_a_refusals_code_is_cut_and_cleaned_whatever_a_service_answers(
    recorded: Recorded,
) -> None:
    system = kit()
    system.agents["stock"].then(RefusedError("a code\nwith spaces " + "x" * 500, "no"))
    await system.submit()
    await system.step(QUEUES.scheduler)
    await system.step(QUEUES.agent("stock"))
    ((_, attributes),) = recorded.metrics()["sas.agent.attempts"]
    assert attributes["sas.fault"] == "a-code-with-spaces-" + "x" * (metrics.CODE_LENGTH_MAX - 19)


@pytest.mark.parametrize(
    "fault",
    [
        lambda n: RefusedError(f"type-{n}", "no"),
        lambda n: RefusedError(f"http-{5000 + n}", "no"),
        lambda n: TransientError("no", kind=f"k{n}"),
    ],
)
async def test_a_service_with_ever_new_codes_makes_no_more_than_some_series(
    recorded: Recorded, fault: Callable[[int], Exception]
) -> None:
    system = kit()
    count = metrics.FAULTS_MAX + 10
    for number in range(count):
        system.agents["stock"].then(fault(number), TransientError("away", kind="http-503"))
    for number in range(count):
        await system.submit(order(f"O-{number}"), f"m-{number}")
        await system.step(QUEUES.scheduler)
        await system.step(QUEUES.agent("stock"))
        while system.bus.take(QUEUES.scheduler):
            """The reply does not matter."""
    points = [attributes for _, attributes in recorded.metrics()["sas.agent.attempts"]]
    faults = {
        attributes["sas.fault"] for attributes in points if attributes["sas.outcome"] != "done"
    }
    assert len(faults) <= metrics.FAULTS_MAX + 2
    assert {"other", "http-503"} <= faults
    metrics.attempt(
        "payment", "pay", direction="do", outcome="refused", fault="declined"
    )  # another agent has its own
    assert recorded.count("sas.agent.attempts", agent="payment", fault="declined") == 1


async def test_a_sweep_reports_how_overdue_its_oldest_row_was(recorded: Recorded) -> None:
    system = kit()
    await system.submit()
    await system.step(QUEUES.scheduler)
    await system.later(75)
    await system.sweep()
    ((seconds, attributes),) = recorded.metrics()["sas.sweep.age"]
    assert seconds == pytest.approx(45, abs=1)
    assert attributes == {}


async def test_a_sweep_that_finds_nothing_reports_zero_and_one_without_the_lease_reports_nothing(
    recorded: Recorded,
) -> None:
    host_1 = kit()
    host_2 = kit(beside=host_1, instance="host-2")
    await host_1.sweep()
    assert recorded.metrics()["sas.sweep.age"] == [(0, {})]
    assert recorded.times("sas.sweep.age") == 1
    await host_2.sweep()
    assert recorded.times("sas.sweep.age") == 1


async def test_the_oldest_message_of_each_queue_of_orders_is_measured_once_a_minute(
    recorded: Recorded,
) -> None:
    system = kit()
    await system.bus.send([Message(QUEUES.orders, "m-1", order("O-1"))])
    await system.later(240)
    await system.bus.send([Message(QUEUES.orders, "m-2", order("O-2"))])
    await system.sweep()
    await system.later(30)
    await system.sweep()
    ages = {a["sas.queue"]: seconds for seconds, a in recorded.metrics()["sas.orders.oldest_age"]}
    assert ages == {QUEUES.orders: 240, lane(QUEUES.orders, urgent=True): 0}
    assert recorded.times("sas.orders.oldest_age") == 2
    await system.later(30)
    system.bus.cut(QUEUES.orders)
    await system.sweep()
    assert recorded.times("sas.orders.oldest_age") == 3, "the other queue is measured"
    await system.later(30)
    await system.sweep()
    assert recorded.times("sas.orders.oldest_age") == 3


async def test_a_scheduled_message_hides_no_older_one_and_is_not_old_itself(
    recorded: Recorded,
) -> None:
    """A message that is put back is a scheduled copy, and begins anew when its time comes."""
    system = kit()
    at = system.clock.now() + timedelta(seconds=200)
    await system.bus.send([Message(QUEUES.orders, "m-1", order("O-1"), scheduled_at=at)])
    await system.bus.send([Message(QUEUES.orders, "m-2", order("O-2"))])
    await system.later(190)
    await system.sweep()
    (points, _) = recorded.metrics()["sas.orders.oldest_age"]
    assert points[0] == 190
    assert system.bus.take(QUEUES.orders) is not None
    await system.later(60)
    await system.sweep()
    (points, _) = recorded.metrics()["sas.orders.oldest_age"]
    assert points[0] == 190 + 50


@pytest.mark.parametrize("later", [timedelta(minutes=50), timedelta(days=30)])
async def test_orders_that_are_scheduled_for_much_later_hide_no_older_one_for_long(
    recorded: Recorded, later: timedelta
) -> None:
    """They fill what one peek reads. An application may mark them as put back."""
    system = kit()
    at = system.clock.now() + later
    junk = Message(
        *(QUEUES.orders, "junk", b" " * 160_000),
        scheduled_at=at,
        properties={"sas_put_back": "1"},
    )
    await system.bus.send([replace(junk, message_id=f"junk/{n}") for n in range(30)])
    await system.bus.send([Message(QUEUES.orders, "m-1", order("O-1"))])
    for _ in range(2):
        await system.later(60)
        await system.sweep()
    ages = {a["sas.queue"]: seconds for seconds, a in recorded.metrics()["sas.orders.oldest_age"]}
    assert ages[QUEUES.orders] == 120


async def test_a_late_reply_is_counted_by_its_step(recorded: Recorded) -> None:
    system = kit()
    await system.submit()
    await system.step(QUEUES.scheduler)
    await system.hand(done(epoch=7, id="O-1/00/do/7"))
    assert recorded.metrics()["sas.replies.late"] == [(1, {"sas.step": "reserve"})]
    await system.hand(done())
    assert recorded.count("sas.replies.late") == 1


async def test_a_conflict_is_counted_for_the_actor_that_lost(recorded: Recorded) -> None:
    host_1 = kit()
    host_2 = kit(beside=host_1, instance="host-2")
    await host_1.run(
        asyncio.gather(
            host_1.submitter.handle(received(QUEUES.orders, "m-1", order())),
            host_2.submitter.handle(received(QUEUES.orders, "m-2", order())),
        )
    )
    assert recorded.metrics()["sas.conflicts"] == [(1, {"sas.actor": "submission"})]


async def test_a_message_put_aside_is_counted_by_its_reason(recorded: Recorded) -> None:
    system = kit()
    await system.submit(b"{")
    assert recorded.count("sas.rejections", actor="submission", reason="not-json") == 1


async def test_a_breaker_is_counted_at_each_change_of_its_state(recorded: Recorded) -> None:
    system = kit()
    policy = BreakerPolicy(failures_max=1)
    actor = agent_actor(system.context, "stock", system.agents["stock"], circuit=policy)
    system.agents["stock"].then(TransientError("down"))
    await system.submit()
    await system.step(QUEUES.scheduler)
    message = system.bus.take(QUEUES.agent("stock"))
    assert message is not None
    await system.run(actor.handle(delivery(message, message_id="m")))
    assert recorded.count("sas.breaker.changes", agent="stock", breaker="open") == 1
    await system.later(16)
    await system.run(
        actor.handle(delivery(message, message_id="put-back/m", properties={CALL_STATE: "waiting"}))
    )
    assert recorded.count("sas.breaker.changes", breaker="half-open") == 1
    assert recorded.count("sas.breaker.changes", breaker="closed") == 1


async def test_requests_and_messages_are_counted_for_the_actor_that_made_them(
    recorded: Recorded,
) -> None:
    class Sender:
        async def send_messages(self, _: object) -> None:
            pass

        async def close(self) -> None:
            pass

    client = SimpleNamespace(get_queue_sender=lambda _: Sender(), close=Sender().close)
    bus = ServiceBus(cast("ServiceBusClient", client))
    meter = Meter()
    await bus.send([Message("q", "m", b"{}")])
    meter.count("reads", 0)
    with tracing.span("work", actor="agent"):
        await bus.send([Message("q", "m", b"{}")])
        meter.count("transactions", 70)
        meter.count("reads", 0)
        meter.count_read(3)
        meter.count_read(0)
        meter.count_written(5)
    await bus.close()
    metrics_by_name, agent = recorded.metrics(), {"sas.actor": "agent"}
    assert metrics_by_name["sas.bus.messages"] == [(1, agent)]
    assert metrics_by_name["sas.bus.bytes"] == [(2, agent)]
    assert metrics_by_name["sas.bus.operations"] == [(1, agent | {"sas.kind": "sends"})]
    assert metrics_by_name["sas.storage.requests"] == [
        (1, agent | {"sas.kind": "transactions"}),
        (1, agent | {"sas.kind": "reads"}),
    ]
    assert metrics_by_name["sas.storage.bytes"] == [(70, agent)]
    assert metrics_by_name["sas.storage.entities"] == [
        (3, agent | {"sas.kind": "read"}),
        (5, agent | {"sas.kind": "written"}),
    ]
    assert meter.now() == Usage(transactions=1, reads=2, entities_read=3, entities_written=5)
    assert bus.meter == Usage(sends=2, messages=2)


@pytest.mark.parametrize(
    ("method", "url", "kind"),
    [
        ("GET", "https://a/orders()?$filter=PartitionKey%20eq%20%2700%27", "queries"),
        ("GET", "https://a/orders(PartitionKey='00',RowKey='x')", "reads"),
        ("POST", "https://a/orders", "writes"),
        ("PUT", "https://a/orders(PartitionKey='00',RowKey='x')", "writes"),
        ("DELETE", "https://a/orders(PartitionKey='00',RowKey='x')", "deletes"),
    ],
)
def test_a_request_is_counted_by_its_kind(method: str, url: str, kind: str) -> None:
    meter = Meter()
    request = SimpleNamespace(method=method, url=url, headers={"Content-Length": "12"})
    meter.count_request(SimpleNamespace(http_request=request))
    assert meter.now() == Usage(**{kind: 1})
    assert meter.storage_bytes == 12


async def everything(system: Kit) -> None:
    """Bring about every metric that the actors tell."""
    system.agents["stock"].then(TransientError("busy"), RefusedError("sold-out", "no"))
    await system.submit()
    await system.submit(b"{")
    await system.drain()
    await system.hand(done(epoch=7, id="O-1/00/do/7"))
    await system.hand(command("undo", 1))
    await system.sweep()
    metrics.conflict()
    metrics.breaker_changed("stock", "open")
    metrics.purged(0)


async def test_names_units_and_attributes_are_those_the_queries_rely_on(recorded: Recorded) -> None:
    system = kit()
    await everything(system)
    with tracing.span("work", actor="agent"):
        metrics.conflict()
        metrics.put_back("scheduler")
        metrics.sent(1, 2)
        metrics.bus_operation("sends")
        metrics.storage_request("reads", 5)
        metrics.entities("read", 1)
    metrics_by_name = recorded.metrics()
    assert set(metrics_by_name) == set(LISTED)
    for name, points in metrics_by_name.items():
        for _, attributes in points:
            assert set(attributes) == set(LISTED[name]["attributes"]), name


def test_every_instrument_is_of_the_kind_and_unit_that_is_listed() -> None:
    instruments: dict[str, tuple[str, str]] = {}

    class Recorder:
        def create_counter(self, name: str, unit: str, _: str) -> None:
            instruments[name] = ("counter", unit)

        def create_histogram(self, name: str, unit: str, _: str, **__: object) -> None:
            instruments[name] = ("histogram", unit)

    metrics.Instruments(cast("Any", Recorder()))
    assert instruments == {
        name: (instrument["kind"], instrument["unit"]) for name, instrument in LISTED.items()
    }
