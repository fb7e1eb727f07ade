"""The Service Bus trigger against a broker, driven by the real SDK on both sides."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient

from devstack.functions.host import Host
from devstack.functions.settings import HostError
from devstack.servicebus import Broker
from devstack.tests.host_kit import until
from devstack.tests.sdk_kit import LEFTOVERS

# The SDK leaves sockets open after a link was refused: see sdk_kit.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), *LEFTOVERS]


APP = """
import asyncio, sys, threading, typing
import azure.functions as func
app = func.FunctionApp()
Msg = func.ServiceBusMessage
seen = []
gate = asyncio.Event()
two = threading.Barrier(2)

def queue(name, **more):
    return app.service_bus_queue_trigger(arg_name="msg", connection="SB", queue_name=name, **more)

def result():
    return app.service_bus_queue_output(arg_name="out", connection="SB", queue_name="out")

@queue("echo")
@result()
async def echo(msg: Msg, out: func.Out[str]) -> None:
    out.set("seen " + msg.get_body().decode())

@queue("failing")
def failing(msg: Msg) -> None:
    raise ValueError(f"delivery {msg.delivery_count}")

@queue("leaves")
def leaves(msg: str) -> None:
    sys.exit("enough")

@queue("gives-up")
async def gives_up(msg: str) -> None:
    task = asyncio.ensure_future(asyncio.sleep(9))
    task.cancel()
    await task

@queue("many")
async def many(msg: str) -> None:
    await gate.wait()
    seen.append(msg)

@queue("threads")
def threads(msg: str, context: func.Context) -> None:
    two.wait(120)
    seen.append(context.invocation_id)

@queue("short-lock")
async def short_lock(msg: Msg) -> None:
    await gate.wait()
    seen.append(msg.delivery_count)

@queue("sessions", is_sessions_enabled=True)
async def sessions(msg: Msg) -> None:
    await asyncio.sleep(0.02)
    seen.append(msg.session_id + msg.get_body().decode())

@queue("quick")
async def quick(msg: str) -> None: ...

@queue("tally")
async def tally(msg: Msg) -> None:
    seen.append((msg.get_body(), msg.delivery_count))
    await asyncio.sleep(0.01)

@queue("off")
async def off(msg: str) -> None: ...

@queue("slow")
async def slow(msg: Msg) -> None:
    await asyncio.sleep(float(msg.get_body()) if msg.delivery_count == 1 else 0)
    seen.append(msg.get_body())
"""
OPTIONS = {
    "maxConcurrentCalls": 3,
    "maxConcurrentSessions": 2,
    "sessionIdleTimeout": "00:00:01",
}
SPECIAL = [
    "failing",
    "leaves",
    "gives-up",
    "short-lock",
    "slow",
    "sessions",
]
QUEUES = [
    "out",
    "echo",
    "many",
    "threads",
    "quick",
    "off",
    "tally",
]


class Bench:
    """One broker and one client for all tests here: opening and closing links takes seconds."""

    def __init__(self, broker: Broker, client: ServiceBusClient) -> None:
        self.broker, self.client = broker, client
        self._senders = {name: client.get_queue_sender(name) for name in (*QUEUES, *SPECIAL)}
        self._out = client.get_queue_receiver("out")

    async def open(self) -> None:
        """Open all links at once, because each takes half a second."""
        senders = (sender.__aenter__() for sender in self._senders.values())
        await asyncio.gather(self._out.__aenter__(), *senders)

    async def send(self, queue: str, *bodies: Any, **properties: Any) -> None:
        messages = [ServiceBusMessage(body, **properties) for body in bodies]
        await self._senders[queue].send_messages(messages)

    async def take(self, count: int) -> list[str]:
        """Receive `count` messages from the queue `out`; return their bodies."""
        bodies: list[str] = []
        async with asyncio.timeout(120):
            while len(bodies) < count:
                for message in await self._out.receive_messages(1, max_wait_time=60):
                    await self._out.complete_message(message)
                    bodies.append(str(message))
        return bodies

    async def close(self) -> None:
        """Close all links at once: the SDK's client would take a second for each."""
        senders = (sender.close() for sender in self._senders.values())
        await asyncio.gather(self._out.close(), *senders)

    def active(self, queue: str) -> int:
        return self.broker.counts(queue).active


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    async with Broker(QUEUES) as broker:
        for name in ("failing", "leaves", "gives-up"):
            broker.create_queue(name, max_delivery_count=3)
        broker.create_queue("short-lock", lock_duration_s=12.0)
        broker.create_queue("slow", lock_duration_s=1.0, max_delivery_count=9)
        broker.create_queue("sessions", requires_session=True)
        connection = broker.connection_string
        async with ServiceBusClient.from_connection_string(connection) as client:
            bench = Bench(broker, client)
            await bench.open()
            yield bench
            await bench.close()


def host_of(app_dir: Path, bench: Bench, *only: str, **options: Any) -> Host:
    (app_dir / "function_app.py").write_text(APP)
    timeout = options.pop("timeout", "00:30:00")
    extensions = {"serviceBus": OPTIONS | options}
    config = {"version": "2.0", "functionTimeout": timeout, "extensions": extensions}
    (app_dir / "host.json").write_text(json.dumps(config))
    settings = {"SB": bench.broker.connection_string, "AzureWebJobs.off.Disabled": "true"}
    return Host(app_dir, settings=settings, only=only or None, drain_s=60)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    """A host that runs the whole app."""
    async with host_of(tmp_path_factory.mktemp("app"), bench) as host:
        yield host


@pytest_asyncio.fixture(loop_scope="module")
async def host(whole: Host) -> Host:
    seen().clear()
    gate().clear()
    return whole


def seen() -> list[Any]:
    """The list in which the app under test notes what it receives."""
    notes: list[Any] = sys.modules["function_app"].seen
    return notes


def gate() -> asyncio.Event:
    """The event for which the waiting functions of the app wait."""
    event: asyncio.Event = sys.modules["function_app"].gate
    return event


def running(host: Host, name: str) -> int:
    return host.counts[name].running if name in host.counts else 0


def succeeded(host: Host, name: str) -> int:
    return host.counts[name].succeeded if name in host.counts else 0


async def test_success_sends_the_output_and_completes(bench: Bench, host: Host) -> None:
    await bench.send("echo", "a", "b")
    assert sorted(await bench.take(2)) == ["seen a", "seen b"]
    await until(lambda: bench.active("echo") == 0)


async def test_an_exception_abandons_until_the_queue_dead_letters(
    bench: Bench, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.send("failing", "poison")
    await until(lambda: bench.broker.counts("failing").dead_letter == 1)
    assert host.counts["failing"].failed == 3
    texts = [record.getMessage() for record in caplog.records if "Failed" in record.getMessage()]
    assert [text.rsplit("ValueError: ")[1] for text in texts] == [
        f"delivery {n}" for n in (1, 2, 3)
    ]
    sub_queue = ServiceBusSubQueue.DEAD_LETTER
    async with bench.client.get_queue_receiver("failing", sub_queue=sub_queue) as dead:
        [message] = await dead.receive_messages(1, max_wait_time=60)
        assert message.dead_letter_reason == "MaxDeliveryCountExceeded"


@pytest.mark.parametrize(
    ("queue", "sentence"),
    [
        ("leaves", "leaves ended with SystemExit (enough): return, or raise an Exception"),
        ("gives-up", "gives_up ended with CancelledError: return, or raise"),
    ],
)
async def test_what_the_worker_would_fail_fails_here(
    bench: Bench, host: Host, caplog: pytest.LogCaptureFixture, queue: str, sentence: str
) -> None:
    await bench.send(queue, "x")
    await until(lambda: bench.broker.counts(queue).dead_letter == 1)
    assert any(sentence in record.getMessage() for record in caplog.records)


async def test_no_more_than_max_concurrent_calls_run_at_once(bench: Bench, host: Host) -> None:
    await bench.send("many", *(["x"] * 12))
    await until(lambda: running(host, "many") == 3)
    await asyncio.sleep(0.2)  # a fourth would have started by now
    assert running(host, "many") == 3
    gate().set()
    await until(lambda: succeeded(host, "many") == 12)


async def test_sync_functions_run_side_by_side_on_threads(bench: Bench, host: Host) -> None:
    await bench.send("threads", *(["x"] * 4))
    await until(lambda: len(set(seen())) == 4)  # each waits on its thread for a second one


async def test_a_lock_is_renewed_while_the_function_runs(bench: Bench, host: Host) -> None:
    await bench.send("short-lock", "long")
    await until(lambda: running(host, "short_lock") == 1)
    [message] = bench.broker.namespace.queue("short-lock").locked.values()
    first = message.locked_until
    await until(lambda: message.locked_until > first)
    gate().set()
    await until(lambda: seen() == [1])
    await until(lambda: bench.active("short-lock") == 0)


async def test_sessions_keep_their_order_while_others_go_on(bench: Bench, host: Host) -> None:
    for session in "AB":
        await bench.send("sessions", *"123", session_id=session)
    await until(lambda: len(seen()) == 6)
    await bench.send("sessions", "4", session_id="C")
    await until(lambda: len(seen()) == 7)
    for session, numbers in (("A", "123"), ("B", "123"), ("C", "4")):
        assert [note for note in seen() if note[0] == session] == [session + n for n in numbers]


async def test_a_settlement_does_not_wait_for_the_idle_receive(bench: Bench, host: Host) -> None:
    """The SDK alone would take 0.2 s and more: see devstack.functions.pumps."""
    loop = asyncio.get_running_loop()
    took = [1.0]
    while min(took) >= 0.15 and len(took) < 100:  # a busy machine makes most of them slow
        await asyncio.sleep(0.02)
        began = loop.time()
        await bench.send("quick", "x")
        await until(lambda: bench.active("quick") == 0)
        took.append(loop.time() - began)
    assert min(took) < 0.15


async def test_a_cancelled_receive_neither_loses_nor_counts_a_message(
    bench: Bench, host: Host
) -> None:
    """The pump cancels idle receives to settle; messages that come just then go back uncounted."""
    bodies = [b"%d" % number for number in range(150)]
    for number in range(0, 150, 3):
        await bench.send("tally", *bodies[number : number + 3])
        await asyncio.sleep(0.003 * (number % 5))
    await until(lambda: bench.active("tally") == 0)
    assert sorted(seen()) == sorted((body, 1) for body in bodies)


async def test_a_disabled_function_is_not_listened_for(bench: Bench, host: Host) -> None:
    await bench.send("off", "x")
    await bench.send("quick", "x")
    await until(lambda: bench.active("quick") == 0)
    assert "off" not in [function.name for function in host.functions]
    assert bench.active("off") == 1


async def test_two_hosts_in_one_process_are_refused(
    tmp_path: Path, bench: Bench, host: Host
) -> None:
    with pytest.raises(HostError, match="already runs in this process"):
        await host_of(tmp_path, bench).start()


# The tests below start hosts of their own; `last` ends the shared one first.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def last(whole: Host) -> None:
    await whole.stop()


@pytest.mark.usefixtures("last")
async def test_stopping_lets_work_in_hand_finish_and_be_completed(
    tmp_path: Path, bench: Bench
) -> None:
    async with host_of(tmp_path, bench, "many") as host:
        await bench.send("many", "in hand")
        await until(lambda: running(host, "many") == 1)
        asyncio.get_running_loop().call_later(0.5, gate().set)  # while it stops
        noted = seen()
    assert (bench.active("many"), noted) == (0, ["in hand"])


@pytest.mark.usefixtures("last")
async def test_work_past_the_drain_limit_is_given_up_and_its_message_stays(
    tmp_path: Path, bench: Bench
) -> None:
    host = host_of(tmp_path, bench, "slow")
    await host.start()
    await bench.send("slow", "600")
    await until(lambda: running(host, "slow") == 1)
    async with asyncio.timeout(120):
        await host.stop(drain_s=0.3)
    assert bench.active("slow") == 1


@pytest.mark.usefixtures("last")
async def test_without_renewal_the_lock_is_lost_and_the_message_comes_again(
    tmp_path: Path, bench: Bench
) -> None:
    async with host_of(
        tmp_path, bench, "slow", maxAutoLockRenewalDuration="00:00:00", maxConcurrentCalls=8
    ):
        await until(lambda: bench.active("slow") == 0)  # what the test above left
        await bench.send("slow", "1.5")
        await until(lambda: seen().count(b"1.5") >= 2)
        await until(lambda: bench.active("slow") == 0)


@pytest.mark.usefixtures("last")
async def test_a_function_past_its_timeout_costs_all_in_flight_a_delivery(
    tmp_path: Path, bench: Bench
) -> None:
    async with host_of(tmp_path, bench, "slow", timeout="00:00:03") as host:
        await bench.send("slow", "9")
        await until(lambda: running(host, "slow") == 1)
        await bench.send("slow", "9", "9")
        await until(lambda: running(host, "slow") == 3)
        assert not host.timed_out.is_set()
        await host.timed_out.wait()
        for _ in range(100):  # turns of the loop, long before their own time ends
            await asyncio.sleep(0)
        assert host.counts["slow"].failed == 3
        await until(lambda: succeeded(host, "slow") >= 3)
        assert host.counts["slow"].failed == 3


NO_RETRIES = {"clientRetryOptions": {"maxRetries": 0}}
"""The SDK asks again for a queue that is not there, for some 12 seconds."""


@pytest.mark.usefixtures("last")
@pytest.mark.parametrize("name", ["nowhere", "quick"])
async def test_a_queue_that_has_no_sessions_to_give_is_said_at_the_start(
    tmp_path: Path, bench: Bench, name: str
) -> None:
    host = host_of(tmp_path, bench, "sessions", **NO_RETRIES)
    app = APP.replace('"sessions", is_sessions', f'"{name}", is_sessions')
    (tmp_path / "function_app.py").write_text(app)
    with pytest.raises(HostError, match=f"the queue {name} cannot be received from"):
        await host.start()
