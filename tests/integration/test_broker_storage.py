"""What survives a stop: the broker's data, opened again by another broker."""

import errno
import os
import shutil
import sqlite3
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from devstack.servicebus import Broker, QueueProperties, storage
from devstack.servicebus.core import browse, settlement
from devstack.servicebus.core.message import Message, MessageState, parse_message
from devstack.servicebus.database import FILE_NAME, Kind, StorageError
from devstack.servicebus.log import Changes, CommitLog
from tests.unit.test_broker_queue import (
    Receiver,
    application_properties,
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


#: What Python 3.8 to 3.13 write alike.
RECORDED = (
    "00000065a62b1f555b02000000280200000069070000005b0100000028060000006c030000000700000000407304000"
    "000686561644e67000000000000e03f75050000006772c3bc6e69fdffffff280200000069050000005b020000006902"
    "0000006c03000000000000000040"
)


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

    def reopen(self, *, cleanly: bool = False) -> None:
        self.broker.commit()
        assert self.broker.journal is not None
        if cleanly:
            self.broker.close_data()
        else:
            self.broker.journal.abandon()
        self.broker = Broker(QUEUES, data=self.directory, clock=self.clock)
        self.broker.open_data()
        self.broker.namespace.tick(self.clock.now)

    def send(self, queue: str, *bodies: bytes, **options: Any) -> list[int]:
        messages = [parse_message(raw(body, **options)) for body in bodies]
        return self.broker.namespace.queue(queue).enqueue(messages, self.clock.now)

    def receive(self, queue: str, count: int = 1) -> list[tuple[Message, bytes]]:
        receiver = Receiver()
        target = self.broker.namespace.find(queue)
        receiver.credit = count
        target.dispatch.want(receiver, self.clock.now)
        target.dispatch.leave(receiver, self.clock.now)
        return receiver.got


@pytest.fixture(params=[True, False], ids=["stopped", "killed"])
def cleanly(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def owner(tmp_path: Path) -> Any:
    owner = Owner(tmp_path / "data")
    yield owner
    owner.broker.close_data()


def test_messages_come_back_in_order_with_all_they_had(owner: Owner, cleanly: bool) -> None:
    owner.send("plain", b"1", message_id="one", ttl_ms=60_000)
    owner.send("plain", b"2", b"3")
    before = list(owner.broker.namespace.queue("plain").messages.values())
    owner.reopen(cleanly=cleanly)
    after = [message for message, _ in owner.receive("plain", 5)]
    assert [body_of(message) for message in after] == [b"1", b"2", b"3"]
    for old, new in zip(before, after, strict=True):
        for field in (
            "sequence",
            "header",
            "bare",
            "annotations",
            "delivery_annotations",
            "expires_at",
        ):
            assert getattr(old, field) == getattr(new, field), field
        assert (old.message_id, old.size) == (new.message_id, new.size)


def test_what_was_completed_does_not_come_back(owner: Owner, cleanly: bool) -> None:
    owner.send("plain", b"1", b"2")
    ((_, token),) = owner.receive("plain")
    settlement.complete(owner.broker.namespace.queue("plain"), token, owner.clock.now)
    owner.reopen(cleanly=cleanly)
    assert [body_of(message) for message, _ in owner.receive("plain", 5)] == [b"2"]


def test_a_lock_goes_on_and_its_token_still_settles(owner: Owner, cleanly: bool) -> None:
    owner.send("plain", b"1")
    ((_, token),) = owner.receive("plain")
    owner.reopen(cleanly=cleanly)
    assert owner.receive("plain") == []
    settlement.complete(owner.broker.namespace.queue("plain"), token, owner.clock.now)
    owner.reopen(cleanly=cleanly)
    assert owner.broker.counts("plain").total == 0


def test_a_lock_that_ended_meanwhile_counts_as_a_delivery(owner: Owner, cleanly: bool) -> None:
    owner.send("plain", b"1")
    for expected in range(3):
        ((message, _),) = owner.receive("plain")
        assert message.delivery_count == expected
        owner.clock.now += 61
        owner.reopen(cleanly=cleanly)
    dead = owner.broker.namespace.find("plain/$DeadLetterQueue").messages.values()
    assert [application_properties(m)["DeadLetterReason"] for m in dead] == [
        "MaxDeliveryCountExceeded"
    ]


def test_deferred_scheduled_and_dead_messages_stay_what_they_were(
    owner: Owner, cleanly: bool
) -> None:
    (deferred,) = owner.send("plain", b"deferred")
    queue = owner.broker.namespace.queue("plain")
    settlement.defer(queue, owner.receive("plain")[0][1], owner.clock.now)
    owner.send("plain", b"dead")
    settlement.dead_letter(queue, owner.receive("plain")[0][1], owner.clock.now, "R", "D")
    owner.send("plain", b"later", scheduled_at=owner.clock.now + 60)
    owner.reopen(cleanly=cleanly)
    queue = owner.broker.namespace.queue("plain")
    assert owner.receive("plain") == []
    assert browse.deferred(queue, [deferred], None)[0].state is MessageState.DEFERRED
    assert owner.broker.counts("plain").scheduled == 1
    ((letter, _),) = owner.receive("plain/$DeadLetterQueue")
    assert application_properties(letter) == {
        "DeadLetterReason": "R",
        "DeadLetterErrorDescription": "D",
    }
    owner.clock.now += 61
    owner.broker.namespace.tick(owner.clock.now)
    assert [body_of(message) for message, _ in owner.receive("plain")] == [b"later"]


def test_forwarded_dead_letters_keep_their_source(owner: Owner, cleanly: bool) -> None:
    owner.send("buried", b"1")
    queue = owner.broker.namespace.queue("buried")
    settlement.dead_letter(queue, owner.receive("buried")[0][1], owner.clock.now, "R", "D")
    owner.reopen(cleanly=cleanly)
    assert [message.dead_letter_source for message, _ in owner.receive("graves")] == ["buried"]


def test_a_duplicate_is_known_after_a_restart(owner: Owner, cleanly: bool) -> None:
    first = owner.send("unique", b"1", message_id="same")
    owner.reopen(cleanly=cleanly)
    assert owner.send("unique", b"2", message_id="same") == first
    owner.clock.now += 601
    assert owner.send("unique", b"3", message_id="same") != first


def test_an_id_that_came_again_after_its_window_is_forgotten_once_after_a_restart(
    owner: Owner, cleanly: bool
) -> None:
    window = QUEUES["unique"].duplicate_window_s
    owner.send("unique", b"1", message_id="same")
    owner.clock.now += window + 1
    owner.send("unique", b"2", message_id="same")
    owner.send("unique", b"3", message_id="other")
    owner.reopen(cleanly=cleanly)
    owner.send("unique", b"4", message_id="same")
    assert owner.broker.counts("unique").active == 3
    owner.clock.now += window + 1
    owner.send("unique", b"5", message_id="same")
    assert owner.broker.counts("unique").active == 4


def test_sequence_numbers_never_fall(owner: Owner, cleanly: bool) -> None:
    numbers = []
    for _ in range(3):
        numbers += owner.send("plain", b"1")
        queue = owner.broker.namespace.queue("plain")
        settlement.complete(queue, owner.receive("plain")[0][1], owner.clock.now)
        owner.reopen(cleanly=cleanly)
    assert numbers == sorted(set(numbers))


def test_session_state_and_order_come_back_and_the_session_is_free(
    owner: Owner, cleanly: bool
) -> None:
    owner.send("lanes", b"1", b"2", session_id="s")
    sessions = owner.broker.namespace.queue("lanes").sessions
    assert sessions is not None
    receiver = Receiver()
    sessions.accept(receiver, "s", owner.clock.now)
    session = sessions.held_by("s", None)
    session.state = b"half way"
    owner.broker.namespace.journal.session_changed(owner.broker.namespace.queue("lanes"), session)
    receiver.credit = 1
    sessions.want(receiver, owner.clock.now)
    owner.reopen(cleanly=cleanly)
    sessions = owner.broker.namespace.queue("lanes").sessions
    assert sessions is not None
    again = Receiver()
    sessions.accept_next(again, owner.clock.now, 1)
    assert again.session is not None
    assert again.session.state == b"half way"
    again.credit = 5
    sessions.want(again, owner.clock.now)
    assert again.bodies == [b"1", b"2"]


def test_queues_made_while_running_come_back_and_deleted_ones_do_not(
    owner: Owner, cleanly: bool
) -> None:
    owner.broker.create_queue("made", lock_duration_s=7.0)
    owner.broker.create_queue("unmade")
    owner.send("made", b"1")
    owner.send("unmade", b"1")
    owner.broker.delete_queue("unmade")
    owner.reopen(cleanly=cleanly)
    assert owner.broker.namespace.queue("made").properties.lock_duration_s == 7.0
    assert owner.broker.counts("made").active == 1
    owner.broker.create_queue("unmade")
    assert owner.broker.counts("unmade").total == 0


def test_what_a_link_held_of_a_deleted_queue_is_written_nowhere(owner: Owner) -> None:
    queue = owner.broker.create_queue("doomed", lock_duration_s=1.0)
    owner.send("doomed", b"1", b"2")
    ((_, token),) = owner.receive("doomed")
    owner.broker.delete_queue("doomed")
    settlement.release(queue, token, owner.clock.now)
    owner.clock.now += 2
    owner.broker.namespace.tick(owner.clock.now)
    owner.reopen()
    owner.broker.create_queue("doomed")
    assert owner.broker.counts("doomed").total == 0


def test_nothing_is_left_of_what_a_deleted_queue_could_not_forward(
    owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    owner.broker.create_queue("target")
    owner.broker.create_queue("doomed", forward_to="target")
    owner.broker.delete_queue("target")
    owner.send("doomed", b"1", b"2")
    name = "doomed/$Transfer/$DeadLetterQueue"
    transfer = owner.broker.namespace.find(name)
    ((_, token),) = owner.receive(name)
    owner.broker.delete_queue("doomed")
    settlement.release(transfer, token, owner.clock.now)
    owner.reopen()
    assert "no such queue is configured" not in caplog.text
    assert owner.broker.journal is not None
    assert not [known for known in owner.broker.journal.stores if known.startswith("doomed")]


def test_what_was_not_committed_is_not_there(owner: Owner) -> None:
    owner.send("plain", b"committed")
    owner.broker.commit()
    owner.send("plain", b"lost")
    assert owner.broker.journal is not None
    owner.broker.journal.abandon()
    owner.broker = Broker(QUEUES, data=owner.directory, clock=owner.clock)
    owner.broker.open_data()
    assert [body_of(message) for message, _ in owner.receive("plain", 5)] == [b"committed"]


def test_old_message_ids_are_forgotten_on_disk_too(owner: Owner) -> None:
    for number in range(600):
        owner.send("unique", b"1", message_id=str(number))
        owner.clock.now += 10
        owner.broker.commit()
    assert owner.broker.journal is not None
    (kept,) = owner.broker.journal.database.execute("SELECT count(*) FROM history").fetchone()
    assert kept < 400


def test_two_brokers_cannot_share_a_directory(owner: Owner) -> None:
    second = Broker(QUEUES, data=owner.directory)
    with pytest.raises(StorageError, match="another broker is using it"):
        second.open_data()


@pytest.mark.parametrize("taken", ["port", "management_port"])
async def test_a_broker_that_finds_its_port_taken_lets_go_of_its_data(
    tmp_path: Path, taken: str
) -> None:
    async with Broker(["q"]) as other:
        first = Broker(["q"], data=tmp_path, **{taken: other.port})  # type: ignore[arg-type]
        with pytest.raises(OSError, match="address already in use"):
            await first.start()
        async with Broker(["q"], data=tmp_path):
            pass


def test_a_file_that_is_no_data_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 100)
    with pytest.raises(StorageError, match="no data of this broker"):
        Broker(data=tmp_path).open_data()
    with pytest.raises(StorageError, match="can be written"):
        Broker(data=tmp_path / FILE_NAME / "below").open_data()


def test_data_of_another_format_is_told(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(StorageError, match="format 99"):
        Broker(data=tmp_path).open_data()


@pytest.mark.parametrize("taken", [0, 7], ids=["nothing", "a part"])
async def test_a_disk_that_fails_stops_the_broker_and_acknowledges_nothing(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def full(file: int, record: bytes) -> int:
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, record[:taken])

    async with Broker(["plain"], data=tmp_path) as broker:
        put(broker, "plain", b"safe")
        broker.commit()
        monkeypatch.setattr(os, "write", full)
        put(broker, "plain", b"lost")
        broker.commit()
        assert broker.failure is not None
        await broker.wait_failed()
        monkeypatch.undo()
    async with Broker(["plain"], data=tmp_path) as broker:
        assert bodies(broker, "plain") == [b"safe"]


async def test_a_database_that_fails_stops_the_broker_and_the_log_keeps_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_FOLD_BYTES", 10_000)
    broker = Broker(["plain"], data=tmp_path)
    broker.open_data()
    assert broker.journal is not None
    broker.journal.database.execute("PRAGMA max_page_count=1")
    sent: list[bytes] = []
    while broker.failure is None:
        sent.append(b"%d" % len(sent))
        put(broker, "plain", sent[-1])
        broker.commit()
    broker.close_data()
    again = Broker(["plain"], data=tmp_path)
    again.open_data()
    assert bodies(again, "plain") == sent
    again.close_data()


def test_a_long_log_is_brought_into_the_database(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_FOLD_BYTES", 20_000)
    journal = owner.broker.journal
    assert journal is not None
    sent: list[bytes] = []
    longest = 0
    for number in range(300):
        sent += [b"%d kept" % number, b"%d gone" % number]
        owner.send("plain", *sent[-2:])
        owner.broker.commit()
        longest = max(longest, journal.log.size)
    assert 10_000 < longest < 22_000
    for _, token in owner.receive("plain", 600)[1::2]:
        settlement.complete(owner.broker.namespace.queue("plain"), token, owner.clock.now)
        owner.broker.commit()
    owner.clock.now += 61
    owner.reopen()
    found = [body_of(message) for message, _ in owner.receive("plain", 600)]
    assert found == [body for body in sent if body.endswith(b"kept")]


def test_messages_that_come_and_go_within_a_log_never_reach_the_database(owner: Owner) -> None:
    journal = owner.broker.journal
    assert journal is not None
    queue = owner.broker.namespace.queue("plain")
    owner.send("plain", b"1", b"2")
    owner.broker.commit()
    settlement.complete(queue, owner.receive("plain")[0][1], owner.clock.now)
    owner.broker.commit()
    before = journal.database.total_changes
    journal.fold()
    messages = journal.database.execute("SELECT id FROM message").fetchall()
    assert len(messages) == 1
    assert journal.database.total_changes - before < 8
    assert journal.log.size == 0


def test_a_kill_between_the_halves_of_a_fold_changes_nothing(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = owner.broker.namespace.queue("plain")
    owner.send("plain", b"done", b"locked", b"waits")
    owner.send("unique", b"1", message_id="same")
    settlement.complete(queue, owner.receive("plain")[0][1], owner.clock.now)
    ((_, token),) = owner.receive("plain")
    owner.broker.commit()
    image = tmp_path / "image"
    assert owner.broker.journal is not None
    # The database has committed, the log is not emptied yet: this is what a kill would leave.
    monkeypatch.setattr(
        owner.broker.journal.log, "clear", lambda: shutil.copytree(owner.directory, image)
    )
    owner.broker.journal.fold()
    monkeypatch.undo()
    assert (image / storage.LOG_NAME).stat().st_size > 0
    owner.reopen(cleanly=True)
    owner.broker.close_data()
    owner.directory = image
    owner.broker = Broker(QUEUES, data=image, clock=owner.clock)
    owner.broker.open_data()
    assert [body_of(message) for message, _ in owner.receive("plain", 5)] == [b"waits"]
    settlement.complete(owner.broker.namespace.queue("plain"), token, owner.clock.now)
    assert owner.send("unique", b"2", message_id="same") == [1]


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_torn_end_of_the_log_is_dropped_and_told(
    owner: Owner, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner.send("plain", b"whole")
    owner.broker.commit()
    path = owner.directory / storage.LOG_NAME
    whole = path.stat().st_size
    owner.send("plain", b"torn")
    owner.broker.commit()
    assert owner.broker.journal is not None
    owner.broker.journal.abandon()
    raw_log = bytearray(path.read_bytes())
    if damage == "cut":
        del raw_log[-3:]
    else:
        raw_log[-3] ^= 1
    path.write_bytes(raw_log)
    owner.broker = Broker(QUEUES, data=owner.directory, clock=owner.clock)
    owner.broker.open_data()
    assert [body_of(message) for message, _ in owner.receive("plain", 5)] == [b"whole"]
    assert f"the last {len(raw_log) - whole} bytes of the log are torn" in caplog.text


def test_a_log_is_of_these_bytes_whatever_python_reads_it(tmp_path: Path) -> None:
    row = (1 << 44 | 7, b"head", None, 0.5, "grün", -3)
    changes: Changes = [(Kind.MESSAGE, [row]), (Kind.GONE, [2, 1 << 44])]
    log = CommitLog(tmp_path / storage.LOG_NAME)
    log.append(changes)
    assert list(log.read()) == [changes]
    log.close()
    assert (tmp_path / storage.LOG_NAME).read_bytes().hex() == RECORDED


def test_a_log_of_another_version_is_told(tmp_path: Path) -> None:
    content = b"\x80\x05no marshal"
    record = struct.pack(">II", len(content), zlib.crc32(content)) + content
    (tmp_path / storage.LOG_NAME).write_bytes(record)
    with pytest.raises(StorageError, match="written by another version of the broker"):
        Broker(data=tmp_path).open_data()
    (tmp_path / storage.LOG_NAME).unlink()
    broker = Broker(data=tmp_path)
    broker.open_data()
    broker.close_data()


def test_a_log_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / storage.LOG_NAME).mkdir()
    with pytest.raises(StorageError, match="cannot be brought into its database"):
        Broker(data=tmp_path).open_data()


def put(broker: Broker, queue: str, body: bytes) -> None:
    broker.namespace.queue(queue).enqueue([parse_message(raw(body))], time.time())


def bodies(broker: Broker, queue: str) -> list[bytes]:
    return [body_of(message) for message in broker.namespace.queue(queue).messages.values()]
