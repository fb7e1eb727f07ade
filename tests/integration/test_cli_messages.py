"""``sas messages`` over the broker: messages of a subqueue are shown, and sent again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from urllib.parse import quote_plus

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from devstack.servicebus import Broker
from devstack.servicebus.config import parse_config
from devstack.servicebus.tokens import KEY_NAME, signature
from devstack.tests.sdk_kit import SHORT_PAUSES
from sas.adapters import queues
from sas.cli.main import main
from sas.ports import BusUnavailableError, UndeliverableError
from tests.functions_rig import SHOP, own_queues

pytestmark = SHORT_PAUSES
DEAD = "/$DeadLetterQueue"
RESEND = ("resend", "--all", "--in", f"{SHOP}/dlq")


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """Give the system's queues; the dead letters of SHOP stay in its subqueue."""
    config = own_queues()
    for queue in config["UserConfig"]["Namespaces"][0]["Queues"]:
        if queue["Name"] == SHOP:
            queue["Properties"].pop("ForwardDeadLetteredMessagesTo")
    async with Broker(parse_config(json.dumps(config))) as running:
        monkeypatch.setenv("ServiceBus", running.connection_string)
        yield running


async def sas(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["messages", *arguments])


async def send(broker: Broker, queue: str, *messages: ServiceBusMessage) -> None:
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for message in messages:
            await sender.send_messages(message)


async def give_up(broker: Broker, queue: str, count: int) -> None:
    """Send messages to a queue, and have them dead-lettered."""
    many = (ServiceBusMessage(f"{n}", message_id=f"m-{n}") for n in range(count))
    await send(broker, queue, *many)
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        for _ in range(count):
            (message,) = await receiver.receive_messages(1, max_wait_time=30)
            await receiver.dead_letter_message(message, reason="unread")


async def bodies(broker: Broker, path: str) -> list[str]:
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(path) as receiver,
    ):
        return [str(message) for message in await receiver.peek_messages(200)]


async def test_many_dead_letters_go_back_inside_the_window_of_duplicate_detection(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    await give_up(broker, SHOP, 120)
    assert await sas(*RESEND, "--yes") == 0
    assert capsys.readouterr().out.endswith("sent 120, removed 120 of 120\n")
    assert await bodies(broker, SHOP) == [str(number) for number in range(120)]
    assert await bodies(broker, SHOP + DEAD) == []


async def test_one_message_in_the_middle_goes_and_the_others_stay_readable(broker: Broker) -> None:
    await give_up(broker, SHOP, 5)
    for verb, name in (("resend", "m-3"), ("remove", "m-1")):
        assert await sas(verb, name, "--in", f"{SHOP}/dlq", "--yes") == 0
    assert await bodies(broker, SHOP) == ["3"]
    assert await bodies(broker, SHOP + DEAD) == ["0", "2", "4"]


async def test_a_crash_between_sending_and_removing_loses_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await give_up(broker, SHOP, 2)

    async def crashes(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(queues, "_complete", crashes)
        assert await sas(*RESEND) == 130
    assert await bodies(broker, SHOP) == ["0"]
    assert await bodies(broker, SHOP + DEAD) == ["0", "1"]
    broker.namespace.find(SHOP + DEAD).expire_locks(time.time())
    assert await sas(*RESEND) == 0
    # Duplicate detection drops the second copy, because its id is the same.
    assert sorted(await bodies(broker, SHOP)) == ["0", "1"]
    assert await bodies(broker, SHOP + DEAD) == []


async def test_of_two_operators_at_once_each_message_is_sent_by_one(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    await give_up(broker, SHOP, 8)
    codes = await asyncio.gather(sas(*RESEND), sas(*RESEND))
    assert sorted(await bodies(broker, SHOP)) == [str(number) for number in range(8)]
    assert await bodies(broker, SHOP + DEAD) == []
    output = capsys.readouterr()
    assert set(codes) <= {0, 1}
    assert "sas: the others were gone, or another reader has them" in output.err or 0 in codes


async def test_a_target_that_does_not_exist_keeps_everything_where_it_lies(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    await give_up(broker, SHOP, 2)
    assert await sas(*RESEND, "--to", "nowhere") == 3
    output = capsys.readouterr()
    assert "queue nowhere: " in output.err
    assert "There is no such queue" in output.err
    assert "were sent" not in output.err
    assert await bodies(broker, SHOP + DEAD) == ["0", "1"]
    bus = queues.OperatorServiceBus.connect(broker.connection_string)
    await bus.check_sending("orders")
    with pytest.raises((BusUnavailableError, UndeliverableError), match="There is no such queue"):
        await bus.check_sending("nowhere")
    assert await bodies(broker, "orders") == []
    await bus.close()


async def test_a_queue_without_the_right_to_read_it_names_the_role(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "r1ght="
    async with Broker(["orders-rejected", "other"], require_key=key) as broker:
        port = broker.connection_string.split("127.0.0.1:")[1].split(";")[0].rstrip("/")
        expiry = str(int(time.time()) + 600)
        resource = quote_plus("sb://127.0.0.1/orders-rejected")
        signed = quote_plus(signature(key, resource, expiry))
        token = f"SharedAccessSignature sr={resource}&sig={signed}&se={expiry}&skn={KEY_NAME}"
        monkeypatch.setenv(
            "ServiceBus",
            f"Endpoint=sb://127.0.0.1:{port};SharedAccessSignature={token};"
            "UseDevelopmentEmulator=true;",
        )
        assert await sas("list", "rejected") == 0
        assert await sas("list", "other") == 3
    assert "Azure Service Bus Data Receiver" in capsys.readouterr().err
