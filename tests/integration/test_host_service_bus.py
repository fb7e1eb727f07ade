"""The Service Bus trigger against a broker, driven by the real SDK on both sides."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from devstack.functions import Host, HostError
from devstack.servicebus import Broker

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEAD = """
import asyncio, json, time, typing
import azure.functions as func
app = func.FunctionApp()
Msg = func.ServiceBusMessage
seen = []
def queue(name, **more):
    return app.service_bus_queue_trigger(
        arg_name="msg", connection="SB", queue_name=name, **more)
def result():
    return app.service_bus_queue_output(arg_name="out", connection="SB", queue_name="out")
"""


class Bench:
    """One broker and one client for all tests here: opening and closing links takes seconds."""

    def __init__(self, broker: Broker, client: ServiceBusClient) -> None:
        self.broker, self.client = broker, client
        self._senders: dict[str, ServiceBusSender] = {}

    async def send(self, queue: str, *bodies: Any, **properties: Any) -> None:
        sender = self._senders.setdefault(queue, self.client.get_queue_sender(queue))
        await sender.send_messages([ServiceBusMessage(body, **properties) for body in bodies])

    async def take(self, queue: str, count: int) -> list[str]:
        taken: list[str] = []
        async with self.client.get_queue_receiver(queue) as receiver, asyncio.timeout(15):
            while len(taken) < count:
                for message in await receiver.receive_messages(1, max_wait_time=5):
                    await receiver.complete_message(message)
                    taken.append(str(message))
        return taken

    async def empty(self, queue: str, **options: Any) -> None:
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with self.client.get_queue_receiver(queue, receive_mode=mode, **options) as receiver:
            while await receiver.receive_messages(100, max_wait_time=0.3):
                pass

    def active(self, queue: str) -> int:
        return self.broker.counts(queue).active


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Bench]:
    async with Broker(["in", "out"]) as broker:
        broker.create_queue("fast", lock_duration_s=5.0, max_delivery_count=3)
        broker.create_queue("sessions", requires_session=True)
        connection = broker.connection_string
        async with ServiceBusClient.from_connection_string(connection) as client:
            yield Bench(broker, client)


@pytest_asyncio.fixture(loop_scope="module")
async def bench(running: Bench) -> AsyncIterator[Bench]:
    """The same bench, its queues emptied after each test that left something."""
    yield running
    running.broker.update_queue("fast", lock_duration_s=5.0)
    for name in ("in", "out", "fast"):
        running.broker.expire_locks(name)
        if running.active(name):
            await running.empty(name)
        if running.broker.counts(name).dead_letter:
            await running.empty(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER)


def host_of(app_dir: Path, bench: Bench, code: str, **service_bus: Any) -> Host:
    (app_dir / "function_app.py").write_text(HEAD + code)
    config = {"version": "2.0", "extensions": {"serviceBus": service_bus}}
    (app_dir / "host.json").write_text(json.dumps(config))
    return Host(app_dir, settings={"SB": bench.broker.connection_string}, drain_s=5)


def seen() -> list[Any]:
    """What the app under test has noted in its own list."""
    found: list[Any] = sys.modules["function_app"].seen
    return found


async def until(condition: Callable[[], bool], *, timeout_s: float = 10) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # the broker is asked, nothing signals
            await asyncio.sleep(0.02)


async def test_success_sends_the_output_and_completes(tmp_path: Path, bench: Bench) -> None:
    code = '@queue("in")\n@result()\nasync def f(msg: Msg, out: func.Out[str]):\n'
    code += "    out.set('seen ' + msg.get_body().decode())\n"
    async with host_of(tmp_path, bench, code):
        await bench.send("in", "a", "b")
        assert sorted(await bench.take("out", 2)) == ["seen a", "seen b"]
        await until(lambda: bench.active("in") == 0)


async def test_an_exception_abandons_until_the_queue_dead_letters(
    tmp_path: Path,
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
) -> None:
    code = '@queue("fast")\ndef f(msg: Msg):\n'
    code += "    raise ValueError(f'delivery {msg.delivery_count}')\n"
    async with host_of(tmp_path, bench, code) as host:
        with caplog.at_level(logging.ERROR):
            await bench.send("fast", "poison")
            await until(lambda: bench.broker.counts("fast").dead_letter == 1)
        assert host.counts["f"].failed == 3
    said = [record.getMessage() for record in caplog.records if "Failed" in record.getMessage()]
    assert [text.rsplit("ValueError: ")[1] for text in said] == [f"delivery {n}" for n in (1, 2, 3)]
    async with bench.client.get_queue_receiver(
        "fast", sub_queue=ServiceBusSubQueue.DEAD_LETTER
    ) as dead:
        [message] = await dead.receive_messages(1, max_wait_time=5)
        assert message.dead_letter_reason == "MaxDeliveryCountExceeded"


async def test_no_more_than_max_concurrent_calls_run_at_once(tmp_path: Path, bench: Bench) -> None:
    code = '@queue("in")\nasync def f(msg: str):\n    await asyncio.sleep(0.1)\n'
    highest = 0
    async with host_of(tmp_path, bench, code, maxConcurrentCalls=3) as host:
        await bench.send("in", *(["x"] * 12))
        async with asyncio.timeout(10):
            while "f" not in host.counts or host.counts["f"].succeeded < 12:
                if "f" in host.counts:
                    highest = max(highest, host.counts["f"].running)
                await asyncio.sleep(0.005)
    assert highest == 3


async def test_sync_functions_run_side_by_side_on_threads(tmp_path: Path, bench: Bench) -> None:
    code = '@queue("in")\ndef f(msg: str, context: func.Context):\n'
    code += "    time.sleep(0.2)\n    seen.append(context.invocation_id)\n"
    async with host_of(tmp_path, bench, code) as host:
        await bench.send("in", *(["x"] * 4))
        highest = 0
        async with asyncio.timeout(10):
            while "f" not in host.counts or host.counts["f"].succeeded < 4:
                highest = max([highest, *(one.running for one in host.counts.values())])
                await asyncio.sleep(0.005)
        assert len(set(seen())) == 4
    assert highest > 1


async def test_a_lock_is_renewed_while_the_function_runs(tmp_path: Path, bench: Bench) -> None:
    bench.broker.update_queue("fast", lock_duration_s=2.0)
    code = '@queue("fast")\nasync def f(msg: Msg):\n'
    code += "    await asyncio.sleep(2.5)\n    seen.append(msg.delivery_count)\n"
    async with host_of(tmp_path, bench, code) as host:
        await bench.send("fast", "long")
        await until(lambda: bench.active("fast") == 0)
        assert seen() == [1]
        assert host.counts["f"].succeeded == 1


async def test_without_renewal_the_lock_is_lost_and_the_message_comes_again(
    tmp_path: Path, bench: Bench
) -> None:
    bench.broker.update_queue("fast", lock_duration_s=1.0)
    code = '@queue("fast")\nasync def f(msg: Msg):\n'
    code += "    await asyncio.sleep(2.0 if msg.delivery_count == 1 else 0)\n"
    options = {"maxAutoLockRenewalDuration": "00:00:00"}
    async with host_of(tmp_path, bench, code, **options) as host:
        await bench.send("fast", "long")
        await until(lambda: "f" in host.counts and host.counts["f"].succeeded == 2)
        await until(lambda: bench.active("fast") == 0)


async def test_a_batch_is_handed_over_whole_and_settled_whole(tmp_path: Path, bench: Bench) -> None:
    code = '@queue("in", cardinality=func.Cardinality.MANY)\n'
    code += "def f(msg: typing.List[Msg]):\n"
    code += "    assert all(m.application_properties['n'] == 1 for m in msg)\n"
    code += "    seen.append([m.get_body().decode() for m in msg])\n"
    await bench.send("in", "a", "b", "c", application_properties={"n": 1})
    async with host_of(tmp_path, bench, code, minMessageBatchSize=3) as host:
        await until(lambda: bench.active("in") == 0)
        assert seen() == [["a", "b", "c"]]
        assert host.counts["f"].succeeded == 1


async def test_sessions_keep_their_order_while_others_go_on(tmp_path: Path, bench: Bench) -> None:
    code = '@queue("sessions", is_sessions_enabled=True)\nasync def f(msg: Msg):\n'
    code += "    await asyncio.sleep(0.02)\n"
    code += "    seen.append(msg.session_id + msg.get_body().decode())\n"
    for session in "AB":
        await bench.send("sessions", *"123", session_id=session)
    options = {"maxConcurrentSessions": 2, "sessionIdleTimeout": "00:00:01"}
    async with host_of(tmp_path, bench, code, **options):
        await until(lambda: len(seen()) == 6)
        await bench.send("sessions", "4", session_id="C")
        await until(lambda: len(seen()) == 7)
        for session, numbers in (("A", "123"), ("B", "123"), ("C", "4")):
            assert [one for one in seen() if one[0] == session] == [session + n for n in numbers]


async def test_stopping_lets_work_in_hand_finish_and_be_completed(
    tmp_path: Path, bench: Bench
) -> None:
    code = '@queue("in")\nasync def f(msg: str):\n'
    code += "    await asyncio.sleep(0.5)\n    seen.append(msg)\n"
    async with host_of(tmp_path, bench, code) as host:
        await bench.send("in", "x")
        await until(lambda: "f" in host.counts and host.counts["f"].running == 1)
        noted = seen()
    assert (bench.active("in"), noted) == (0, ["x"])


async def test_work_past_the_drain_limit_is_given_up_and_its_message_stays(
    tmp_path: Path, bench: Bench
) -> None:
    code = '@queue("in")\nasync def f(msg: str):\n    await asyncio.sleep(60)\n'
    host = host_of(tmp_path, bench, code)
    await host.start()
    await bench.send("in", "x")
    await until(lambda: "f" in host.counts and host.counts["f"].running == 1)
    began = asyncio.get_running_loop().time()
    await host.stop(drain_s=0.3)
    assert asyncio.get_running_loop().time() - began < 4
    assert bench.active("in") == 1


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("    return 'value'\n", "no $return"),
        ("    out.set(object())\n", "cannot be sent"),
        ("    await asyncio.sleep(9)\n", "functionTimeout"),
    ],
)
async def test_what_the_worker_would_fail_fails_here(
    tmp_path: Path,
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    body: str,
    sentence: str,
) -> None:
    code = '@queue("fast")\n@result()\nasync def f(msg: str, out: func.Out[str]):\n' + body
    host = host_of(tmp_path, bench, code)
    config = {"version": "2.0", "functionTimeout": "00:00:00.200"}
    (tmp_path / "host.json").write_text(json.dumps(config))
    async with host:
        await bench.send("fast", "x")
        await until(lambda: bench.broker.counts("fast").dead_letter == 1)
    assert any(sentence in record.getMessage() for record in caplog.records)


async def test_a_list_in_an_output_is_one_message_each(tmp_path: Path, bench: Bench) -> None:
    code = '@queue("in")\n@result()\ndef f(msg: str, out: func.Out[str]):\n'
    code += "    out.set(['a', {'b': 1}])\n"
    async with host_of(tmp_path, bench, code):
        await bench.send("in", "x")
        assert sorted(await bench.take("out", 2)) == ["a", '{"b": 1}']


async def test_a_queue_that_does_not_exist_is_said_at_the_start(
    tmp_path: Path, bench: Bench
) -> None:
    code = '@queue("nowhere")\ndef f(msg: str): ...\n'
    with pytest.raises(HostError, match="f: the queue nowhere cannot be received from"):
        await host_of(tmp_path, bench, code).start()


async def test_a_disabled_function_is_not_listened_for(tmp_path: Path, bench: Bench) -> None:
    code = '@queue("in")\ndef off(msg: str): ...\n@queue("fast")\ndef on(msg: str): ...\n'
    host_of(tmp_path, bench, code)
    settings = {"SB": bench.broker.connection_string, "AzureWebJobs.off.Disabled": "true"}
    async with Host(tmp_path, settings=settings) as host:
        await bench.send("in", "x")
        await bench.send("fast", "x")
        await until(lambda: "on" in host.counts and host.counts["on"].succeeded == 1)
        assert [one.name for one in host.functions] == ["on"]
        assert bench.active("in") == 1


async def test_two_hosts_in_one_process_are_refused(tmp_path: Path, bench: Bench) -> None:
    code = '@queue("in")\ndef f(msg: str): ...\n'
    async with host_of(tmp_path, bench, code):
        with pytest.raises(HostError, match="already runs in this process"):
            await Host(tmp_path, settings={"SB": bench.broker.connection_string}).start()


async def test_a_settlement_does_not_wait_for_the_idle_receive(
    tmp_path: Path, bench: Bench
) -> None:
    """The SDK alone would take 0.2 s and more: see devstack.functions.pump."""
    code = '@queue("in")\nasync def f(msg: str): ...\n'
    loop = asyncio.get_running_loop()
    took: list[float] = []
    async with host_of(tmp_path, bench, code):
        for _ in range(20):
            await asyncio.sleep(0.02)
            began = loop.time()
            await bench.send("in", "x")
            await until(lambda: bench.active("in") == 0)
            took.append(loop.time() - began)
    assert sorted(took)[10] < 0.15


async def test_a_broken_connection_is_mended(tmp_path: Path, bench: Bench) -> None:
    code = '@queue("in")\nasync def f(msg: str): ...\n'
    async with host_of(tmp_path, bench, code) as host:
        bench.broker.drop_connections()
        await bench.send("in", "x")
        await until(lambda: "f" in host.counts and host.counts["f"].succeeded == 1, timeout_s=20)
