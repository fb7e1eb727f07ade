"""Keeps everything acknowledged over ``kill -9``, in one SQLite database in WAL mode.

The queues record their changes in the journal's write-behind buffer. `SqliteJournal.commit` writes
the buffer in one transaction (group commit). The server calls it at the end of each read of a
socket, before it sends the acknowledgements. A killed process loses nothing that was committed.
A power failure may lose the last commits, but never a part of one: only checkpoints flush the disk
(``synchronous=NORMAL``).

The key of a row is ``store << 44 | sequence``; each queue and sub-queue has a store. The lock,
delivery count and state change often, so they have a small row of their own: a delivery does not
rewrite the body. See docs/adr/0002-sqlite-in-wal-mode.md.
"""

import json
import operator
import sqlite3
from pathlib import Path
from typing import Any

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.core.dispatch import Session
from devstack.servicebus.core.message import Message, MessageState, read_identity
from devstack.servicebus.core.namespace import Namespace
from devstack.servicebus.core.properties import QueueProperties
from devstack.servicebus.core.queue import Journal, Queue

FILE_NAME = "broker.sqlite3"
FORMAT = 6
#: Sequence numbers are reserved in steps, so that a message does not write the counter.
_RESERVE = 1000
#: Old message-ids are deleted once for so many new ones.
_FORGET_EVERY = 256
_SHIFT = 44
_MASK = (1 << _SHIFT) - 1
#: NORMAL flushes the disk at checkpoints only. EXCLUSIVE keeps other brokers out.
_SETTINGS = (
    "secure_delete=OFF",
    "locking_mode=EXCLUSIVE",
    "journal_mode=WAL",
    "synchronous=NORMAL",
)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS store(id INTEGER PRIMARY KEY, name TEXT UNIQUE, reserved INTEGER);
CREATE TABLE IF NOT EXISTS queue(name TEXT PRIMARY KEY, properties TEXT, created_at REAL);
CREATE TABLE IF NOT EXISTS message(
    id INTEGER PRIMARY KEY, header BLOB, annotations BLOB, annotation_count INTEGER, bare BLOB,
    size INTEGER, enqueued_at REAL, enqueued_sequence INTEGER, scheduled_at REAL,
    expires_at REAL, ttl_s REAL, dead_letter_source TEXT, delivery_annotations BLOB);
CREATE TABLE IF NOT EXISTS delivery(
    id INTEGER PRIMARY KEY, count INTEGER, state INTEGER, token BLOB, locked_until REAL);
CREATE TABLE IF NOT EXISTS history(id INTEGER PRIMARY KEY, message_id BLOB, at REAL);
CREATE TABLE IF NOT EXISTS session(
    store INTEGER, id TEXT, state BLOB, updated_at REAL, PRIMARY KEY(store, id)) WITHOUT ROWID;
"""
#: The columns of ``message`` behind its key: attributes of `Message`.
_COLUMNS = (
    *("header", "annotations", "annotation_count", "bare", "size", "enqueued_at"),
    *("enqueued_sequence", "scheduled_at", "expires_at", "ttl_s", "dead_letter_source"),
    "delivery_annotations",
)
_values = operator.attrgetter(*_COLUMNS)
_STORE_MESSAGE = "INSERT OR REPLACE INTO message VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)"


class StorageError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


def open_database(directory: Path) -> sqlite3.Connection:
    """Open or create the database in ``directory``. Raises StorageError with a sentence."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(
            directory / FILE_NAME, isolation_level=None, check_same_thread=False, timeout=0.5
        )
    except (OSError, sqlite3.Error) as error:
        raise StorageError(
            f"{directory} cannot hold the broker's data ({error}); give --data a directory that "
            "can be written"
        ) from None
    advice = ""
    try:
        for setting in _SETTINGS:
            database.execute(f"PRAGMA {setting}")
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found in {0, FORMAT}:
            database.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;"
            )
            return database
        advice = f"another version of the broker wrote it (format {found}, not {FORMAT})"
    except sqlite3.Error as error:
        advice = f"its file is not data of this broker ({error})"
        if "locked" in str(error):
            advice = "another broker is using it; stop that one"
    database.close()
    raise StorageError(f"{directory} cannot be used: {advice}, or give --data another directory")


class SqliteJournal(Journal):
    """The write-behind buffer of the queues' changes. See `Journal` for the methods."""

    def __init__(self, directory: Path) -> None:
        """Open the database. Raises StorageError with a sentence."""
        self.database = open_database(directory)
        self.stores: dict[str, int] = dict(self.database.execute("SELECT name, id FROM store"))
        self._reserved: dict[int, int] = dict(
            self.database.execute("SELECT id, reserved FROM store")
        )
        self._changes: list[tuple[str, tuple[Any, ...]]] = []
        self._since_forgetting = 0

    def _key(self, queue: Queue, sequence: int) -> int:
        """Give the key of a row, and reserve its sequence number."""
        name = queue.name.lower()
        store = self.stores.get(name)
        if store is None:
            store = self.stores[name] = max(self.stores.values(), default=0) + 1
        if sequence >= self._reserved.get(store, 0):
            self._reserved[store] = sequence + _RESERVE
            row = (store, name, self._reserved[store])
            self._changes.append(("INSERT OR REPLACE INTO store VALUES(?, ?, ?)", row))
        return store << _SHIFT | sequence

    def stored(self, queue: Queue, message: Message) -> None:
        """Record a message that arrived, or whose properties changed."""
        row = (self._key(queue, message.sequence), *_values(message))
        self._changes.append((_STORE_MESSAGE, row))
        if message.state or message.delivery_count or message.token is not None:
            self.changed(queue, message)

    def changed(self, queue: Queue, message: Message) -> None:
        """Record a message's lock, delivery count or state."""
        key, m = self._key(queue, message.sequence), message
        row = (key, m.delivery_count, int(m.state), m.token, m.locked_until)
        self._changes.append(("INSERT OR REPLACE INTO delivery VALUES(?, ?, ?, ?, ?)", row))

    def removed(self, queue: Queue, message: Message) -> None:
        """Record that a message was removed from this queue."""
        key = (self._key(queue, message.sequence),)
        self._changes += [
            ("DELETE FROM message WHERE id = ?", key),
            ("DELETE FROM delivery WHERE id = ?", key),
        ]

    def remembered(self, queue: Queue, message_id: Any, at: float, sequence: int) -> None:
        """Record an entry of the duplicate detection history."""
        row = (self._key(queue, sequence), encode.scalar(message_id), at)
        self._changes.append(("INSERT OR REPLACE INTO history VALUES(?, ?, ?)", row))
        self._since_forgetting += 1
        if self._since_forgetting >= _FORGET_EVERY:
            self._since_forgetting = 0
            bounds = (self._key(queue, 0), self._key(queue, queue.history.oldest_sequence()))
            self._changes.append(("DELETE FROM history WHERE id >= ? AND id < ?", bounds))

    def session_changed(self, queue: Queue, session: Session) -> None:
        """Record a session's state."""
        row = (self._key(queue, 0) >> _SHIFT, session.id, session.state, session.updated_at)
        self._changes.append(("INSERT OR REPLACE INTO session VALUES(?, ?, ?, ?)", row))

    def queue_changed(self, queue: Queue) -> None:
        """Record a queue that was created or changed."""
        row = (queue.name, json.dumps(queue.properties.to_official()), queue.created_at)
        self._changes.append(("INSERT OR REPLACE INTO queue VALUES(?, ?, ?)", row))

    def queue_deleted(self, queue: Queue) -> None:
        """Delete a queue with its messages."""
        name = queue.name.lower()
        self._changes.append(("DELETE FROM queue WHERE name = ?", (queue.name,)))
        for known in [it for it in self.stores if it == name or it.startswith(name + "/$")]:
            store = self.stores.pop(known)
            self._reserved.pop(store, None)
            bounds = (store << _SHIFT, (store + 1) << _SHIFT)
            self._changes += [
                ("DELETE FROM message WHERE id >= ? AND id < ?", bounds),
                ("DELETE FROM delivery WHERE id >= ? AND id < ?", bounds),
                ("DELETE FROM history WHERE id >= ? AND id < ?", bounds),
                ("DELETE FROM session WHERE store = ?", (store,)),
                ("DELETE FROM store WHERE id = ?", (store,)),
            ]

    def commit(self) -> None:
        """Write the buffer in one transaction. Raises sqlite3.Error if the disk fails."""
        if not self._changes:
            return
        self.database.execute("BEGIN IMMEDIATE")
        for statement, row in self._changes:
            self.database.execute(statement, row)
        self.database.execute("COMMIT")
        self._changes = []

    def close(self) -> None:
        """Write the buffer and close the database."""
        try:
            self.commit()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the database without writing the buffer."""
        self.database.close()

    def recover(self, namespace: Namespace, now: float) -> None:
        """Restore queues, messages, locks, the history and session states.

        It also creates stored queues that are not configured. A message lock lasts until its
        end. A session's lock ended with the connection that held it.
        """
        self._recover_queues(namespace)
        queues = self._recovered_stores(namespace)
        deliveries = {row[0]: row[1:] for row in self.database.execute("SELECT * FROM delivery")}
        for row in self.database.execute("SELECT * FROM message ORDER BY id"):
            queue = queues[row[0] >> _SHIFT]
            message, token = Message(sequence=row[0] & _MASK), None
            for name, value in zip(_COLUMNS, row[1:], strict=True):
                setattr(message, name, value)
            read_identity(message)
            if row[0] in deliveries:
                message.delivery_count, state, token, until = deliveries[row[0]]
                message.state, message.locked_until = MessageState(state), until
            if token is not None and queue.sessions is None:
                queue.index(message)
                queue.restore_lock(message, token)
            else:
                queue.restore(message, now)
        for queue in queues.values():
            queue.forward_waiting(now)
        self._recover_history(queues)
        self._recover_sessions(queues)

    def _recover_queues(self, namespace: Namespace) -> None:
        known = {queue.name.lower() for queue in namespace}
        rows = self.database.execute("SELECT name, properties, created_at FROM queue").fetchall()
        for name, properties, created_at in rows:
            if name.lower() not in known:
                settings = QueueProperties.from_official(json.loads(properties))
                namespace.create(name, settings, created_at)

    def _recovered_stores(self, namespace: Namespace) -> dict[int, Queue]:
        queues = {store: namespace.find(name) for name, store in self.stores.items()}
        for store, queue in queues.items():
            queue.last_sequence = self._reserved[store]
        return queues

    def _recover_history(self, queues: dict[int, Queue]) -> None:
        # An id that was sent again after its window has two rows. The later one counts.
        rows = self.database.execute("SELECT id, message_id, at FROM history ORDER BY id")
        for key, raw, at in rows:
            queues[key >> _SHIFT].history.remember(decode.decode(raw)[0], at, key & _MASK)

    def _recover_sessions(self, queues: dict[int, Queue]) -> None:
        rows = self.database.execute("SELECT store, id, state, updated_at FROM session")
        for store, session_id, state, updated_at in rows:
            sessions = queues[store].sessions
            if sessions is not None and state is not None:
                session = sessions.open(session_id)
                session.state, session.updated_at = state, updated_at
