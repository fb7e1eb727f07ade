"""One order has one trace: from its application's message to the notification."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from sas.adapters.servicebus import to_sdk
from sas.client import NewOrder, OrdersClient
from sas.engine import run_on
from sas.engine.delivery import Delivery
from sas.ports import Message, RefusedError, TransientError
from sas.telemetry import tracing
from sas.testing.bus import BusFault
from tests.telemetry_kit import Recorded, id_of, parent_of, recording, trace_of
from tests.unit.actors_kit import (
    CARE,
    QUEUES,
    SHOP,
    Kit,
    command,
    kit,
    letter,
    order,
    received,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SENDER = f"00-{TRACE}-00f067aa0ba902b7-01"
UNSAMPLED = SENDER[:-1] + "0"


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with recording() as records:
        yield records


async def submitted(system: Kit, properties: Mapping[str, object] | None = None) -> None:
    carried = {"traceparent": SENDER} if properties is None else properties
    await system.run(
        system.submitter.handle(received(QUEUES.orders, "m-1", order(), properties=carried))
    )


async def test_every_span_and_message_of_an_order_is_of_its_senders_trace(
    recorded: Recorded,
) -> None:
    system = kit()
    await submitted(system)
    await system.drain()
    assert system.state() == "Processed"
    assert recorded.traces() == {TRACE}
    expected = ["submission", "scheduler claim", *["scheduler reply"] * 2]
    expected += ["agent payment attempt", "agent payment do"]
    expected += ["agent stock attempt", "agent stock do"]
    assert sorted(recorded.names) == sorted(expected)
    notified = system.bus.messages(SHOP)
    assert len(notified) == 4
    assert {m.properties["traceparent"].split("-")[1] for m in notified} == {TRACE}


async def test_each_span_hangs_below_the_one_that_sent_its_message(recorded: Recorded) -> None:
    system = kit()
    await submitted(system)
    await system.drain()
    assert parent_of(recorded.span("submission")) == int(SENDER.split("-")[2], 16)
    chain = ["submission", "scheduler claim", "agent stock do"]
    for above, below in itertools.pairwise(chain):
        assert parent_of(recorded.span(below)) == id_of(recorded.span(above)), below
    assert parent_of(recorded.span("agent stock attempt")) == id_of(recorded.span("agent stock do"))


async def test_what_runs_on_hangs_below_the_span_that_recorded_it(recorded: Recorded) -> None:
    """That span has ended by then, and the host may have one of its own."""
    system = kit()
    root = Message(QUEUES.orders, "m-1", order())
    with tracing.span("host"):
        await system.receive(root, properties={"traceparent": SENDER})
        request = system.bus.take(QUEUES.agent("stock"))
        assert request is not None
        await system.receive(request)
    chain = ["submission", "scheduler claim", "agent stock do", "scheduler reply"]
    for above, below in itertools.pairwise(chain):
        assert parent_of(recorded.span(below)) == id_of(recorded.span(above)), below
        assert trace_of(recorded.span(below)) == TRACE


@pytest.mark.parametrize("is_at_a_bound", [True, False], ids=["at a bound", "after a failure"])
async def test_what_cannot_run_on_travels_in_the_trace_of_the_span_that_recorded_it(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, is_at_a_bound: bool
) -> None:
    system = kit()

    async def fail(_delivery: Delivery) -> None:
        raise LookupError("a bug")

    if is_at_a_bound:
        monkeypatch.setattr(run_on, "HAND_OVERS_MAX", 0)
    else:
        system.context.run_on.handlers = {QUEUES.scheduler: fail}
    root = Message(QUEUES.orders, "m-1", order())
    with tracing.span("host"):
        await system.receive(root, properties={"traceparent": SENDER})
    (wake,) = system.bus.messages(QUEUES.scheduler)
    _, trace_id, span_id, _ = wake.properties["traceparent"].split("-")
    assert (trace_id, int(span_id, 16)) == (TRACE, id_of(recorded.span("submission")))


async def test_a_retry_is_a_second_attempt_below_the_same_request(recorded: Recorded) -> None:
    system = kit()
    system.agents["stock"].then(TransientError("busy", kind="http-503"))
    await submitted(system)
    await system.drain()
    attempts = [span for span in recorded.spans if span.name == "agent stock attempt"]
    request = recorded.span("agent stock do")
    assert {parent_of(span) for span in attempts} == {id_of(request)}
    attributes = [dict(span.attributes or {}) for span in attempts]
    assert [attempt["sas.attempt"] for attempt in attributes] == [1, 2]
    assert [attempt["sas.outcome"] for attempt in attributes] == ["transient", "done"]
    assert [attempt["sas.fault"] for attempt in attributes] == ["http-503", ""]
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR, StatusCode.UNSET]


async def test_a_span_has_the_attributes_of_its_subject(recorded: Recorded) -> None:
    system = kit()
    await submitted(system)
    await system.drain()
    attributes = {"sas.order_id": "O-1", "sas.workflow": "chain", "sas.step": "pay", "sas.epoch": 1}
    assert dict(recorded.span("agent payment do").attributes or {}) == attributes
    assert dict(recorded.span("submission").attributes or {}) == {
        "sas.order_id": "O-1",
        "sas.workflow": "chain",
    }


async def test_what_the_supervisor_does_goes_on_in_the_orders_trace(recorded: Recorded) -> None:
    system = kit()
    await submitted(system)
    await system.step(QUEUES.scheduler)
    system.agents_die()
    await system.later(31)
    await system.sweep()
    sweep, expire = recorded.span("supervisor sweep"), recorded.span("supervisor expire")
    assert trace_of(expire) == TRACE != trace_of(sweep)
    assert [link.context.span_id for link in expire.links] == [id_of(sweep)]
    (wake,) = system.bus.messages(QUEUES.scheduler)
    assert wake.properties["traceparent"].split("-")[1] == TRACE


async def test_an_out_row_is_sent_in_the_orders_trace(recorded: Recorded) -> None:
    system = kit()
    system.bus.plan = lambda m: BusFault.UNAVAILABLE if m.queue == SHOP else None
    await submitted(system)
    system.bus.plan = lambda _: None
    await system.later(31)
    await system.sweep()
    assert trace_of(recorded.span("supervisor send")) == TRACE
    (message,) = system.bus.messages(SHOP)
    assert message.properties["traceparent"].split("-")[1] == TRACE


async def test_a_command_and_a_dead_letter_have_spans_of_their_own(recorded: Recorded) -> None:
    system = kit(CARE)
    await system.submit(order(workflow="care"))
    message = command("undo", system.order().seq)
    await system.hand(message)
    dead = replace(letter(message), properties={"traceparent": SENDER})
    await system.run(system.dead_letters.handle(dead))
    for name in ("scheduler command", "dead-letters"):
        assert dict(recorded.span(name).attributes or {})["sas.order_id"] == "O-1"
    assert trace_of(recorded.span("dead-letters")) == TRACE


async def test_a_repeat_after_a_crash_differs_in_its_trace_alone(recorded: Recorded) -> None:
    system = kit()
    await submitted(system)
    await submitted(system, {"traceparent": SENDER.replace("00f067aa0ba902b7", "b" * 16)})
    for queue in (QUEUES.scheduler, SHOP):
        first, second = system.bus.messages(queue)
        assert first.properties["traceparent"] != second.properties["traceparent"]
        assert replace(first, properties={}) == replace(second, properties={})
        assert {n for n in first.properties if first.properties[n] != second.properties[n]} == {
            "traceparent"
        }


async def test_an_order_without_a_trace_gets_one_and_keeps_it(recorded: Recorded) -> None:
    system = kit()
    await submitted(system, {})
    await system.drain()
    assert len(recorded.traces()) == 1
    traceparent = system.order().details.traceparent
    assert traceparent is not None
    assert traceparent.split("-")[1] in recorded.traces()


async def test_without_an_sdk_the_senders_trace_is_passed_on_all_the_same() -> None:
    system = kit()
    await submitted(system, {"traceparent": UNSAMPLED, "tracestate": "vendor=1"})
    (wake,) = system.bus.messages(QUEUES.scheduler)
    assert wake.properties == {"traceparent": UNSAMPLED, "tracestate": "vendor=1"}


async def test_without_an_sdk_and_without_a_trace_messages_carry_nothing() -> None:
    system = kit()
    await submitted(system, {})
    (wake,) = system.bus.messages(QUEUES.scheduler)
    assert wake.properties == {}
    assert system.order().details.traceparent is None


@pytest.mark.parametrize(
    "traceparent",
    [
        {"traceparent": "nonsense"},
        {"traceparent": 7},
        {"traceparent": b"\xff\xfe"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"traceparent": SENDER + "-" + "x" * 5000},
        {"tracestate": "a=b"},
        {"traceparent": None},
        {"Traceparent": SENDER},
    ],
)
async def test_nonsense_for_a_trace_is_as_good_as_none(
    recorded: Recorded, traceparent: Any
) -> None:
    system = kit()
    await submitted(system, traceparent)
    assert system.state() == "Pending"
    assert parent_of(recorded.span("submission")) is None


def test_a_trace_is_read_from_bytes_too() -> None:
    context = tracing.context_of({"traceparent": SENDER.encode()})
    assert f"{trace.get_current_span(context).get_span_context().trace_id:032x}" == TRACE


async def test_the_hosts_own_span_is_linked_and_the_senders_is_the_parent(
    recorded: Recorded,
) -> None:
    system = kit()
    with tracing.span("host"):
        await submitted(system)
    submission = recorded.span("submission")
    assert trace_of(submission) == TRACE
    assert [link.context.span_id for link in submission.links] == [id_of(recorded.span("host"))]


async def test_a_span_that_fails_has_the_kind_of_its_error(recorded: Recorded) -> None:
    system = kit()
    system.bus.fail_next(BusFault.UNAVAILABLE)
    with pytest.raises(Exception, match="an injected fault"):
        await submitted(system)
    span = recorded.span("submission")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "BusUnavailableError"
    assert span.events == ()


async def test_a_refusal_is_an_attempts_outcome(recorded: Recorded) -> None:
    system = kit()
    system.agents["stock"].then(RefusedError("sold-out", "none left"))
    await submitted(system)
    await system.step(QUEUES.scheduler)
    await system.step(QUEUES.agent("stock"))
    attributes = dict(recorded.span("agent stock attempt").attributes or {})
    assert (attributes["sas.outcome"], attributes["sas.fault"]) == ("refused", "sold-out")


def test_the_bus_sends_the_trace_beside_a_messages_own_properties(recorded: Recorded) -> None:
    message = Message("q", "m", b"{}", properties={"sas_event": "received"})
    with tracing.span("here"):
        properties = to_sdk(message).application_properties or {}
    assert set(properties) == {"sas_event", "traceparent"}
    assert str(properties["traceparent"]).split("-")[1] == trace_of(recorded.span("here"))
    assert set(to_sdk(message).application_properties or {}) == {"sas_event"}


async def test_the_client_starts_a_trace_or_goes_on_in_its_applications(recorded: Recorded) -> None:
    connection = "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k"
    async with OrdersClient(connection, reply_queue=SHOP) as client:
        alone, _ = client._message(0, NewOrder(order_id="A", order={}))
        with tracing.span("shop"):
            within, _ = client._message(0, NewOrder(order_id="B", order={}))
    first, second = (m.application_properties or {} for m in (alone, within))
    shop = trace_of(recorded.span("shop"))
    assert str(second["traceparent"]).split("-")[1] == shop
    assert str(first["traceparent"]).split("-")[1] != shop
    assert recorded.names == ["submit", "submit", "shop"]


async def test_a_workflow_with_a_wait_in_it_is_still_one_trace(recorded: Recorded) -> None:
    system = kit()
    await submitted(system)
    await system.step(QUEUES.scheduler)
    await system.later(timedelta(seconds=31).total_seconds())
    await system.sweep()
    await system.drain()
    assert system.state() == "Processed"
    assert {trace_of(s) for s in recorded.spans if s.name != "supervisor sweep"} == {TRACE}
