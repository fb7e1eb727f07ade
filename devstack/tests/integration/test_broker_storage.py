"""The broker's data on the disk: its bytes, its errors, and what of it is forgotten.

What the life of messages leaves behind after a stop or a kill: devstack/tests/machines.
"""

import asyncio
import shutil
import sqlite3
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from devstack.servicebus import Broker, QueueProperties
from devstack.servicebus.core import operations
from devstack.servicebus.core.message import Message, parse_message
from devstack.servicebus.storage import FILE_NAME, StorageError
from devstack.tests.queue_kit import (
    Receiver,
    body_of,
    raw,
)

QUEUES = {
    "plain": QueueProperties(max_delivery_count=3),
    "unique": QueueProperties(requires_duplicate_detection=True),
    "lanes": QueueProperties(requires_session=True),
    "buried": QueueProperties(forward_dead_letters_to="graves"),
    "graves": QueueProperties(),
}


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Owner:
    """Opens and reopens a broker on one directory, without its listener."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Clock()
        self.broker = Broker(QUEUES, data=directory, clock=self.clock)
        self.broker.open_data()

    def reopen(self, queues: dict[str, QueueProperties] = QUEUES) -> None:
        """Open the data again after a kill."""
        self.broker.commit()
        assert self.broker.journal is not None
        self.broker.journal.abandon()
        self.broker = Broker(queues, data=self.directory, clock=self.clock)
        self.broker.open_data()
        self.broker.namespace.tick(self.clock.now)

    def send(self, queue: str, *bodies: bytes, **options: Any) -> list[int]:
        messages = [parse_message(raw(body, **options)) for body in bodies]
        return self.broker.namespace.queue(queue).enqueue(messages, self.clock.now)

    def receive(self, queue: str, count: int = 1) -> list[tuple[Message, bytes]]:
        receiver = Receiver()
        target = self.broker.namespace.find(queue)
        receiver.credit = count
        target.dispatch.add_credit(receiver, self.clock.now)
        target.dispatch.detach(receiver, self.clock.now)
        return receiver.deliveries


@pytest.fixture
def owner(tmp_path: Path) -> Any:
    owner = Owner(tmp_path / "data")
    yield owner
    owner.broker.close_data()


def test_messages_come_back_in_order_with_all_they_had(owner: Owner) -> None:
    owner.send("plain", b"1", message_id="one", ttl_ms=60_000)
    owner.send("plain", b"2", b"3")
    owner.send("buried", b"4")
    buried, graves = map(owner.broker.namespace.queue, ("buried", "graves"))
    ((_, token),) = owner.receive("buried")
    operations.dead_letter(buried, token, owner.clock.now, "Bad")
    before = [*owner.broker.namespace.queue("plain").messages.values(), *graves.messages.values()]
    owner.reopen()
    after = [message for name in ("plain", "graves") for message, _ in owner.receive(name, 5)]
    assert [body_of(message) for message in after] == [b"1", b"2", b"3", b"4"]
    for old, new in zip(before, after, strict=True):
        for name in {field.name for field in fields(Message)} - {"token", "locked_until"}:
            assert getattr(old, name) == getattr(new, name), name


def test_messages_follow_once_a_queue_is_configured_to_forward(owner: Owner) -> None:
    owner.send("plain", b"1")
    owner.reopen(QUEUES | {"plain": QueueProperties(forward_to="graves")})
    assert (owner.broker.counts("plain").active, owner.broker.counts("graves").active) == (0, 1)


def test_an_id_that_came_again_after_its_window_is_forgotten_in_its_turn_after_a_restart(
    owner: Owner,
) -> None:
    window = QUEUES["unique"].duplicate_window_s
    owner.send("unique", b"1", message_id="same")
    owner.clock.now += window + 1
    owner.send("unique", b"2", message_id="other")
    owner.clock.now += 2
    owner.send("unique", b"3", message_id="same")
    owner.reopen()
    owner.send("unique", b"4", message_id="same")
    assert owner.broker.counts("unique").active == 3
    owner.clock.now += window - 1
    owner.send("unique", b"5", message_id="other")  # its window is over, and that of `same` is not
    owner.send("unique", b"6", message_id="same")
    assert owner.broker.counts("unique").active == 4


def test_queues_made_while_running_come_back_and_deleted_ones_do_not(owner: Owner) -> None:
    owner.broker.create_queue("made", lock_duration_s=7.0)
    owner.broker.create_queue("unmade")
    owner.send("made", b"1")
    owner.send("unmade", b"1")
    owner.broker.delete_queue("unmade")
    owner.reopen()
    assert owner.broker.namespace.queue("made").properties.lock_duration_s == 7.0
    assert owner.broker.counts("made").active == 1
    owner.broker.create_queue("unmade")
    assert owner.broker.counts("unmade").total == 0
    for body in (b"2", b"3"):  # the newest queue, once more and without a restart in between
        owner.send("unmade", body)
        owner.broker.delete_queue("unmade")
        owner.broker.create_queue("unmade")
    owner.send("unmade", b"4")
    owner.reopen()
    assert owner.broker.counts("unmade").active == 1


async def test_a_queue_that_was_deleted_in_process_does_not_come_back_after_a_kill(
    tmp_path: Path,
) -> None:
    async with Broker(data=tmp_path / "live") as broker:
        broker.create_queue("unmade")
        await asyncio.sleep(0.05)
        broker.delete_queue("unmade")
        await asyncio.sleep(0.05)
        shutil.copytree(tmp_path / "live", tmp_path / "copy")
    copy = Broker(data=tmp_path / "copy")
    copy.open_data()
    assert len(copy.namespace) == 0
    copy.close_data()


def test_what_a_link_held_of_a_deleted_queue_is_written_nowhere(owner: Owner) -> None:
    queue = owner.broker.create_queue("doomed", lock_duration_s=1.0)
    owner.send("doomed", b"1", b"2")
    ((_, token),) = owner.receive("doomed")
    owner.broker.delete_queue("doomed")
    operations.release(queue, token, owner.clock.now)
    owner.clock.now += 2
    owner.broker.namespace.tick(owner.clock.now)
    owner.reopen()
    owner.broker.create_queue("doomed")
    assert owner.broker.counts("doomed").total == 0


def test_nothing_is_left_of_what_a_deleted_queue_could_not_forward(owner: Owner) -> None:
    owner.broker.create_queue("target")
    owner.broker.create_queue("doomed", forward_to="target")
    owner.broker.delete_queue("target")
    owner.send("doomed", b"1", b"2")
    name = "doomed/$Transfer/$DeadLetterQueue"
    transfer = owner.broker.namespace.find(name)
    ((_, token),) = owner.receive(name)
    owner.broker.delete_queue("doomed")
    operations.release(transfer, token, owner.clock.now)
    owner.reopen()
    assert owner.broker.journal is not None
    assert not [name for name in owner.broker.journal.stores if name.startswith("doomed")]


def test_old_message_ids_are_forgotten_on_disk_too(owner: Owner) -> None:
    for number in range(512):
        owner.clock.now += 10
        owner.send("unique", b"1", message_id=str(number))
        owner.broker.commit()
    assert owner.broker.journal is not None
    (count,) = owner.broker.journal.database.execute("SELECT count(*) FROM history").fetchone()
    assert count < 400
    owner.reopen()
    oldest = 512 - int(QUEUES["unique"].duplicate_window_s / 10)
    owner.send("unique", b"1", message_id=str(oldest))
    assert owner.broker.counts("unique").active == 512


def test_two_brokers_cannot_share_a_directory(owner: Owner) -> None:
    second = Broker(QUEUES, data=owner.directory)
    with pytest.raises(StorageError, match="another broker is using it"):
        second.open_data()


@pytest.mark.parametrize("option", ["port", "management_port"])
async def test_a_broker_that_finds_its_port_taken_lets_go_of_its_data(
    tmp_path: Path, option: str
) -> None:
    async with Broker(["q"]) as other:
        first = Broker(["q"], data=tmp_path, **{option: other.port})  # type: ignore[arg-type]
        with pytest.raises(OSError, match="address already in use"):
            await first.start()
        async with Broker(["q"], data=tmp_path):
            pass


def test_a_file_that_is_not_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 100)
    with pytest.raises(StorageError, match="is not data of this broker"):
        Broker(data=tmp_path).open_data()
    with pytest.raises(StorageError, match="can be written"):
        Broker(data=tmp_path / FILE_NAME / "below").open_data()


def test_data_of_another_format_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(StorageError, match="format 99"):
        Broker(data=tmp_path).open_data()


async def test_a_disk_that_fails_stops_the_broker_and_acknowledges_nothing(tmp_path: Path) -> None:
    durable: list[bytes] = []
    async with Broker(["plain"], data=tmp_path) as broker:
        assert broker.journal is not None
        broker.journal.database.execute("PRAGMA max_page_count=40")
        for _ in range(1000):
            put(broker, "plain", b"%d" % len(durable) + bytes(2000))
            broker.commit()
            if broker.failure is not None:
                break
            durable.append(b"%d" % len(durable) + bytes(2000))
        await broker.wait_failed()
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection("127.0.0.1", broker.port)
    assert durable
    async with Broker(["plain"], data=tmp_path) as broker:
        assert bodies(broker, "plain") == durable


def test_one_commit_is_one_transaction(owner: Owner) -> None:
    journal = owner.broker.journal
    assert journal is not None
    owner.broker.commit()
    statements: list[str] = []
    journal.database.set_trace_callback(statements.append)
    owner.send("plain", b"1", b"2", b"3")
    owner.send("unique", b"1", message_id="same")
    owner.receive("plain")
    owner.broker.commit()
    owner.broker.commit()
    journal.database.set_trace_callback(None)
    assert statements[0] == "BEGIN IMMEDIATE"
    assert statements[-1] == "COMMIT"
    assert sum(text in {"BEGIN IMMEDIATE", "COMMIT"} for text in statements) == 2
    assert sum("INTO message" in text for text in statements) == 4


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_torn_end_of_the_wal_takes_only_the_last_commit(
    owner: Owner, tmp_path: Path, damage: str
) -> None:
    owner.send("plain", b"whole")
    owner.broker.commit()
    owner.send("plain", b"torn")
    owner.broker.commit()
    image = tmp_path / "image"
    shutil.copytree(owner.directory, image)
    wal = image / f"{FILE_NAME}-wal"
    content = bytearray(wal.read_bytes())
    if damage == "cut":
        del content[-3:]
    else:
        content[-3] ^= 1
    wal.write_bytes(content)
    again = Owner(image)
    assert [body_of(message) for message, _ in again.receive("plain", 5)] == [b"whole"]
    again.broker.close_data()


def put(broker: Broker, queue: str, body: bytes) -> None:
    broker.namespace.queue(queue).enqueue([parse_message(raw(body))], time.time())


def bodies(broker: Broker, queue: str) -> list[bytes]:
    return [body_of(message) for message in broker.namespace.queue(queue).messages.values()]
