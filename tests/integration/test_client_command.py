"""``sas submit`` as a process, against the broker and a stand-in for the system behind it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from devstack.servicebus import Broker
from devstack.servicebus.wire.links import QueueSenderLink
from devstack.tests.sdk_kit import SHORT_PAUSES
from tests.forked import sas_said
from tests.functions_rig import until
from tests.integration.client_cases import REPLIES, notification

pytestmark = SHORT_PAUSES
ROOT = Path(__file__).parents[2]
NORTHWIND = ROOT / "samples" / "northwind-orders.jsonl"


@asynccontextmanager
async def system(broker: Broker) -> AsyncIterator[None]:
    """Answer every order: it is received and, unless its id begins with S, completed."""
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as sdk,
        sdk.get_queue_receiver("orders") as receiver,
        sdk.get_queue_sender(REPLIES) as sender,
    ):

        async def work() -> None:
            while True:
                for message in await receiver.receive_messages(200, max_wait_time=1):
                    await answer(sender, message)
                    await receiver.complete_message(message)

        working = asyncio.create_task(work())
        try:
            yield
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def answer(sender: ServiceBusSender, message: ServiceBusReceivedMessage) -> None:
    order_id = json.loads(b"".join(message.body))["order_id"]
    events = [notification(order_id, "received")]
    if not order_id.startswith("S"):
        events.append(notification(order_id, "completed", state="Processed"))
    await sender.send_messages(events)


def environ(broker: Broker) -> dict[str, str]:
    """Return the environment of ``sas``."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SAS_")}
    return env | {"ServiceBus": broker.connection_string, "SAS_REPLY_QUEUE": REPLIES}


class Sas:
    """A ``sas`` process that the test speaks with while it runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, broker: Broker, *arguments: str) -> Sas:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-m", "sas.cli", *arguments,
            cwd=ROOT, env=environ(broker), limit=2**24,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(process)

    async def end(self, stdin: bytes = b"") -> tuple[int, list[str], str]:
        """Give it the rest of its input; return its exit code, lines and complaints."""
        out, err = await asyncio.wait_for(self.process.communicate(stdin), 120)
        code = self.process.returncode
        assert code is not None
        return code, out.decode().splitlines(), err.decode()


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(["orders", REPLIES]) as broker:
        yield broker


async def run(broker: Broker, *arguments: str, stdin: str = "") -> tuple[int, list[str], str]:
    words = ["submit", "--workflow", "order", *arguments]
    output = await asyncio.to_thread(sas_said, words, environ(broker), stdin=stdin)
    return output.code, output.out.splitlines(), output.err


def lines(*order_ids: str) -> str:
    return "".join(json.dumps({"order_id": order_id}) + "\n" for order_id in order_ids)


async def test_the_orders_of_the_sample_are_submitted_and_followed_to_their_end(
    broker: Broker,
) -> None:
    async with system(broker):
        code, out, err = await run(broker, str(NORTHWIND), "--follow")
    assert code == 0
    assert all(line.startswith("orders that have ended: ") for line in err.splitlines())
    assert len(out) == 2 * 830 + 1
    assert sum(line.split()[1] == "completed" for line in out[:-1]) == 830
    assert out[-1] == ("submitted 830, completed 830, failed 0, undone 0, rejected 0, unfinished 0")
    assert broker.counts("orders").total == broker.counts(REPLIES).total == 0


async def test_a_bad_line_ends_with_2_and_says_what_was_sent(broker: Broker) -> None:
    stdin = lines("A", "B") + "\n" + lines("a/b", "C")
    code, out, err = await run(broker, "-", stdin=stdin)
    assert code == 2
    assert out == ["submitted 2"]
    assert err.startswith("sas: line 4: order 'a/b': order_id contains '/'")
    assert "2 orders were sent before; to send one again is safe." in err
    assert broker.counts("orders").active == 2


async def test_orders_flow_while_the_input_is_still_open(broker: Broker) -> None:
    async with system(broker):
        sas = await Sas.start(broker, "submit", "-", "--workflow", "order", "--follow")
        stdin, stdout = sas.process.stdin, sas.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(lines("A-1").encode())
        first = [await asyncio.wait_for(stdout.readline(), 120) for _ in range(2)]
        assert [line.split()[1] for line in first] == [b"received", b"completed"]
        code, out, err = await sas.end(lines("A-2").encode())
    assert (code, err) == (0, "")
    assert out[-1].startswith("submitted 2, completed 2")


async def _follows(broker: Broker) -> bool:
    """Return whether somebody receives from the response queue."""
    links = (link for link in broker.links() if isinstance(link, QueueSenderLink))
    return any(link.queue is not None and link.queue.name == REPLIES for link in links)


@pytest.mark.parametrize("stdin", ["", lines("S-1")], ids=["waiting for input", "following"])
async def test_ctrl_c_ends_with_130_and_a_summary(broker: Broker, stdin: str) -> None:
    async with system(broker):
        sas = await Sas.start(broker, "submit", "-", "--workflow", "order", "--follow")
        pipe, stdout = sas.process.stdin, sas.process.stdout
        assert pipe is not None
        assert stdout is not None
        pipe.write(stdin.encode())
        if stdin:
            assert b"received" in await asyncio.wait_for(stdout.readline(), 120)
        else:  # it follows from the start, whatever it is yet to be given
            await until(lambda: _follows(broker), "the command listens")
        sas.process.send_signal(signal.SIGINT)
        await asyncio.wait_for(sas.process.wait(), 120)  # its stdin is open all the while
        code, out, err = await sas.end()
    assert code == 130
    assert out[-1].startswith(f"submitted {len(stdin.splitlines())}, ")
    assert err == "interrupted: the orders that were sent are still processed\n"
    assert broker.counts(REPLIES).locked == 0


async def test_a_reader_that_goes_away_ends_the_command_quietly(broker: Broker) -> None:
    async with system(broker):
        sas = await Sas.start(broker, "submit", str(NORTHWIND), "--workflow", "order", "--follow")
        stdout = sas.process.stdout
        assert stdout is not None
        await asyncio.wait_for(stdout.readline(), 120)
        stdout._transport.close()  # type: ignore[attr-defined]  # what `head -1` does
        code, _, err = await sas.end()
    assert code == 1
    assert "Traceback" not in err
