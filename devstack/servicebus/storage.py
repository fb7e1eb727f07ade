"""Keeps everything that was acknowledged over a ``kill -9``, in one SQLite database in WAL mode.

Theory of operation: how a change becomes durable before a client learns of it. The numbers stand
again at the steps in the code; step 4 is in wire/context.py, and step 5 in broker.py.

1. *Record.* A queue changes its messages in memory, and calls the journal for each change. The
   journal appends a statement and a copy of the values to its buffer. It writes nothing yet. The
   buffer keeps the order of the changes, so a message that is locked and then completed ends as
   removed.
2. *Reserve.* Sequence numbers must never come twice, not even after a crash, because clients use
   them to receive deferred messages. To write the counter with each message would be slow. So the
   journal reserves a thousand numbers at once, and the reservation goes into the same buffer,
   before the first message that needs it. After a restart the queue begins behind the reservation,
   and the unused numbers stay unused.
3. *Commit.* At the end of each read of a socket (or of each turn of the event loop for other work)
   the server calls `commit`: one transaction for all changes of all queues (group commit). The
   acknowledgements of that read wait in memory meanwhile.
4. *Acknowledge.* Only after the commit `Context.flush` gives the bytes to the sockets.
5. *Fail.* If the disk is full or fails, `commit` raises. The broker then drops every connection
   together with the waiting acknowledgements, and closes its port (`Broker.commit`). The management
   port answers every request but ``/health`` with the failure. So no client believes in a change
   that was not written.
6. *Recover.* At a start the broker reads everything back: queues, messages, locks, the history of
   duplicate detection, and session states. A message lock goes on with its token until its end, so
   that a client which reconnects can still settle, and nobody else gets the message meanwhile. The
   lock of a session ended with its connection: its messages come again, and no delivery is counted.

What a ``kill -9`` leaves behind, by its moment:

- Before the commit (1 to 3): nothing of the read is on the disk, and nothing of it is acknowledged.
  The client sends or settles again.
- During the commit: SQLite finds the unfinished transaction at the end of its log and ignores it.
  The case is the same as before the commit.
- After the commit and before the bytes arrive (4): the change is durable, but the client does not
  know. A sender sends again; duplicate detection drops the copy, or the message is there twice. A
  receiver that completes a message again learns that the lock is lost, and nobody gets the message
  again. A message on its way to a receiver in receive-and-delete mode is lost: that mode says so.

A power failure may lose the last commits, because SQLite flushes the disk only at checkpoints
(``synchronous=NORMAL``). It never leaves a part of a commit. See
docs/adr/0002-sqlite-in-wal-mode.md.

Who writes and who reads: the methods of `Journal` append to ``_changes``. The queues, the namespace
and the requests on sessions call them, on the event loop. Only `commit` takes from it, on the same
loop. ``stores`` and ``_reserved`` are read from the database at the start. `_key` and
`queue_deleted` write them; `_key` and the recovery read them. The lock on the file keeps other
brokers out.

The key of a row is ``store << 44 | sequence``; each queue and each of its parts has a store. The
lock, delivery count and state change often, so they have a small row of their own: a delivery does
not rewrite the body.
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
#: So many sequence numbers are reserved at once.
_RESERVE = 1000
#: After so many new message-ids, the ones that left the window are deleted. This happens for the
#: queue that recorded the last of them.
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
    "header",
    "annotations",
    "annotation_count",
    "bare",
    "size",
    "enqueued_at",
    "enqueued_sequence",
    "scheduled_at",
    "expires_at",
    "ttl_s",
    "dead_letter_source",
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
    problem = ""
    try:
        for setting in _SETTINGS:
            database.execute(f"PRAGMA {setting}")
        (stored_format,) = database.execute("PRAGMA user_version").fetchone()
        if stored_format in {0, FORMAT}:
            database.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;"
            )
            return database
        problem = f"another version of the broker wrote it (format {stored_format}, not {FORMAT})"
    except sqlite3.Error as error:
        problem = f"its file is not data of this broker ({error})"
        if "locked" in str(error):
            problem = "another broker is using it; stop that one"
    database.close()
    raise StorageError(f"{directory} cannot be used: {problem}, or give --data another directory")


class SqliteJournal(Journal):
    """The buffer of the queues' changes, and the database. See `Journal` for the methods."""

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
        """Return the key of a row, and reserve its sequence number."""
        name = queue.name.lower()
        store = self.stores.get(name)
        if store is None:
            store = self.stores[name] = max(self.stores.values(), default=0) + 1
        if sequence >= self._reserved.get(store, 0):  # 2.
            self._reserved[store] = sequence + _RESERVE
            row = (store, name, self._reserved[store])
            self._changes.append(("INSERT OR REPLACE INTO store VALUES(?, ?, ?)", row))
        return store << _SHIFT | sequence

    def stored(self, queue: Queue, message: Message) -> None:
        """Record a message that arrived, or whose properties changed."""
        # 1. The row copies the values, so later changes of the message do not reach it.
        row = (self._key(queue, message.sequence), *_values(message))
        self._changes.append((_STORE_MESSAGE, row))
        if message.state or message.delivery_count or message.token is not None:
            self.changed(queue, message)

    def changed(self, queue: Queue, message: Message) -> None:
        """Record a message's lock, delivery count or state."""
        row = (
            self._key(queue, message.sequence),
            message.delivery_count,
            int(message.state),
            message.token,
            message.locked_until,
        )
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
        store_names = [
            store_name
            for store_name in self.stores
            if store_name == name or store_name.startswith(name + "/$")
        ]
        for store_name in store_names:
            store = self.stores.pop(store_name)
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
        # 3. If a statement raises (5), SQLite undoes the transaction when the database is closed.
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

        It also creates stored queues that are not configured.
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
            # 6. A lock of a session is not restored: its connection is gone.
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
        configured = {queue.name.lower() for queue in namespace}
        rows = self.database.execute("SELECT name, properties, created_at FROM queue").fetchall()
        for name, properties, created_at in rows:
            if name.lower() not in configured:
                settings = QueueProperties.from_official(json.loads(properties))
                namespace.create(name, settings, created_at)

    def _recovered_stores(self, namespace: Namespace) -> dict[int, Queue]:
        queues = {store: namespace.find(name) for name, store in self.stores.items()}
        for store, queue in queues.items():
            queue.last_sequence = self._reserved[store]  # 2. The numbers up to here may be in use.
        return queues

    def _recover_history(self, queues: dict[int, Queue]) -> None:
        # An id that came again after its window has two rows. The later row counts.
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
