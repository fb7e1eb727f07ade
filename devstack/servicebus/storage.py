"""What survives ``kill -9``: everything acknowledged, in one SQLite file.

The queues write down what changes as they go; nothing touches the disk until `commit`, which
the server calls once for each turn of its loop, before any acknowledgement of that turn leaves.
Write-ahead logging without a flush of the disk cache (``synchronous=NORMAL``): a killed process
loses nothing; a power failure may lose the last moments but never tears a transaction.

Rows are keyed ``store << 44 | sequence``, one store for each queue and sub-queue. What changes
often (lock, delivery count, state) is a small row of its own, so that a delivery does not
rewrite the body. That row outlives its message a little and is deleted with many others: a lease
without a message means nothing, as no number is given twice.
"""

import json
import sqlite3
from pathlib import Path
from typing import Any

from devstack.servicebus.amqp import encode
from devstack.servicebus.core.durations import FOREVER_S
from devstack.servicebus.core.message import Message
from devstack.servicebus.core.queue import QueueCore
from devstack.servicebus.core.sessions import Session

FILE_NAME = "broker.sqlite3"
FORMAT = 3
SHIFT = 44
_RESERVE = 1000
_PURGE_AT = 1000
_PAGE_BYTES = 1024
_CHECKPOINT_PAGES = 8000
_FORGET_EVERY = 256

_SCHEMA = """
CREATE TABLE IF NOT EXISTS store(id INTEGER PRIMARY KEY, name TEXT UNIQUE, reserved INTEGER);
CREATE TABLE IF NOT EXISTS queue(name TEXT PRIMARY KEY, properties TEXT, created_at REAL);
CREATE TABLE IF NOT EXISTS message(
    id INTEGER PRIMARY KEY, header BLOB, annotations BLOB, annotation_count INTEGER, bare BLOB,
    size INTEGER, enqueued_at REAL, enqueued_sequence INTEGER, scheduled_at REAL,
    expires_at REAL, ttl_s REAL, source TEXT, delivery_annotations BLOB);
CREATE TABLE IF NOT EXISTS lease(
    id INTEGER PRIMARY KEY, delivery_count INTEGER, state INTEGER, token BLOB,
    locked_until REAL);
CREATE TABLE IF NOT EXISTS history(
    id INTEGER PRIMARY KEY, message_id BLOB, at REAL);
CREATE TABLE IF NOT EXISTS session(
    store INTEGER, id TEXT, state BLOB, updated_at REAL, PRIMARY KEY(store, id)) WITHOUT ROWID;
"""


class StorageError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


def open_database(directory: Path) -> sqlite3.Connection:
    """Open (or create) the file in ``directory``. Raises StorageError with a sentence."""
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
    try:
        _prepare(database, directory)
    except sqlite3.Error as error:
        database.close()
        advice = (
            "another broker is using it; stop that one or give another directory"
            if "locked" in str(error)
            else f"it is no data of this broker ({error}); give another directory"
        )
        raise StorageError(f"{directory} cannot be used: {advice}") from None
    except StorageError:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, directory: Path) -> None:
    # Small pages: a commit writes every page that it touched, and most of ours touch two rows.
    database.execute(f"PRAGMA page_size={_PAGE_BYTES}")
    database.execute("PRAGMA secure_delete=OFF")
    database.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
    database.execute("PRAGMA locking_mode=EXCLUSIVE")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    (found,) = database.execute("PRAGMA user_version").fetchone()
    if found not in {0, FORMAT}:
        raise StorageError(
            f"{directory} was written by another version of the broker (format {found}, this one "
            f"reads {FORMAT}); give --data another directory"
        )
    database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;")


class SqliteJournal:
    """Gathers what the queues change and writes it at once. See ports.Journal."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        self.stores: dict[str, int] = dict(database.execute("SELECT name, id FROM store"))
        self._reserved: dict[int, int] = dict(database.execute("SELECT id, reserved FROM store"))
        self._id_of: dict[QueueCore, int] = {}
        self._reservations: dict[int, int] = {}
        self._definitions: dict[str, QueueCore] = {}
        self._messages: dict[int, Message] = {}
        self._leases: dict[int, Message] = {}
        self._gone: list[int] = []
        self._orphans: list[tuple[int]] = []
        self._history: dict[int, tuple[bytes, float]] = {}
        self._forgotten: dict[int, int] = {}
        self._sessions: dict[tuple[int, str], Session] = {}
        self._since_forgetting = 0

    # -- what the queues tell ---------------------------------------------------------------

    def key(self, queue: QueueCore, sequence: int) -> int:
        """Give the key of a row, and see that no number at or below it is given again."""
        store = self._id_of.get(queue)
        if store is None:
            store = self._id_of[queue] = self.store_of(queue.name)
        if sequence > self._reserved[store]:
            self._reserved[store] = self._reservations[store] = sequence + _RESERVE
        return store << SHIFT | sequence

    def store_of(self, name: str) -> int:
        """Give the number of a queue's store, a new one where there is none."""
        store = self.stores.get(name.lower())
        if store is None:
            store = max(self.stores.values(), default=0) + 1
            self.stores[name.lower()] = store
            self._reserved[store] = 0
            self._reservations[store] = 0
        return store

    def stored(self, queue: QueueCore, message: Message) -> None:
        """A message arrived, or its properties changed."""
        key = self.key(queue, message.sequence)
        self._messages[key] = message
        if message.state or message.delivery_count or message.token is not None:
            self._leases[key] = message

    def changed(self, queue: QueueCore, message: Message) -> None:
        """A message's lock, delivery count or state changed."""
        self._leases[self.key(queue, message.sequence)] = message

    def removed(self, queue: QueueCore, message: Message) -> None:
        """A message is gone from this queue."""
        key = self.key(queue, message.sequence)
        self._messages.pop(key, None)
        self._leases.pop(key, None)
        self._gone.append(key)

    def remembered(self, queue: QueueCore, message_id: Any, at: float, sequence: int) -> None:
        """A message-id entered the duplicate detection history."""
        self._history[self.key(queue, sequence)] = (encode.scalar(message_id), at)
        self._since_forgetting += 1
        if self._since_forgetting >= _FORGET_EVERY:
            self._since_forgetting = 0
            store = self._id_of[queue]
            self._forgotten[store] = queue.history.oldest_sequence()

    def session_changed(self, queue: QueueCore, session: Session) -> None:
        """A session's state changed."""
        self._sessions[(self.key(queue, 0) >> SHIFT, session.id)] = session

    def queue_changed(self, queue: QueueCore) -> None:
        """A queue was created or its properties were changed."""
        self._definitions[queue.name] = queue

    def queue_deleted(self, queue: QueueCore) -> None:
        """A queue was deleted with all it held."""
        self.commit()
        prefix = queue.name.lower()
        doomed = [name for name in self.stores if name == prefix or name.startswith(prefix + "/$")]
        self.database.execute("BEGIN IMMEDIATE")
        for name in doomed:
            store = self.stores.pop(name)
            first, last = store << SHIFT, (store + 1) << SHIFT
            for table in ("message", "lease", "history"):
                self.database.execute(
                    f"DELETE FROM {table} WHERE id >= ? AND id < ?",  # noqa: S608 (our names)
                    (first, last),
                )
            self.database.execute("DELETE FROM session WHERE store = ?", (store,))
            self.database.execute("DELETE FROM store WHERE id = ?", (store,))
        self.database.execute("DELETE FROM queue WHERE name = ?", (queue.name,))
        self.database.execute("COMMIT")
        self._id_of = {known: n for known, n in self._id_of.items() if n in self.stores.values()}

    # -- writing ----------------------------------------------------------------------------

    def commit(self) -> None:
        """Make durable what was gathered. Raises sqlite3.Error, and then nothing was written."""
        if not (
            self._messages
            or self._leases
            or self._gone
            or self._history
            or self._sessions
            or self._definitions
            or self._reservations
        ):
            return
        database = self.database
        database.execute("BEGIN IMMEDIATE")
        try:
            self._write_rare()
            if self._messages:
                database.executemany(_PUT, [_row(k, m) for k, m in self._messages.items()])
            if self._leases:
                database.executemany(_LEASE, [_lease_row(k, m) for k, m in self._leases.items()])
            if self._gone:
                keys = [(key,) for key in self._gone]
                database.executemany("DELETE FROM message WHERE id = ?", keys)
                self._orphans += keys
            if len(self._orphans) >= _PURGE_AT:
                database.executemany("DELETE FROM lease WHERE id = ?", self._orphans)
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")
        self._messages, self._leases, self._gone = {}, {}, []
        if len(self._orphans) >= _PURGE_AT:
            self._orphans = []

    def _write_rare(self) -> None:
        database = self.database
        if self._definitions:
            rows = [
                (queue.name, json.dumps(queue.properties.to_official()), queue.created_at)
                for queue in self._definitions.values()
            ]
            database.executemany("INSERT OR REPLACE INTO queue VALUES(?, ?, ?)", rows)
            self._definitions = {}
        if self._reservations:
            names = {store: name for name, store in self.stores.items()}
            stores = [(store, names[store], to) for store, to in self._reservations.items()]
            database.executemany("INSERT OR REPLACE INTO store VALUES(?, ?, ?)", stores)
            self._reservations = {}
        if self._history:
            known = [(key, raw, at) for key, (raw, at) in self._history.items()]
            database.executemany("INSERT OR REPLACE INTO history VALUES(?, ?, ?)", known)
            self._history = {}
        for store, oldest in self._forgotten.items():
            first = store << SHIFT
            database.execute(
                "DELETE FROM history WHERE id >= ? AND id < ?", (first, first | oldest)
            )
        self._forgotten = {}
        for (store, session_id), session in self._sessions.items():
            database.execute(
                "INSERT OR REPLACE INTO session VALUES(?, ?, ?, ?)",
                (store, session_id, session.state, session.updated_at),
            )
        self._sessions = {}

    def close(self) -> None:
        """Write what is left and let go of the file."""
        self.commit()
        self.database.close()


_PUT = "INSERT OR REPLACE INTO message VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)"
_LEASE = "INSERT OR REPLACE INTO lease VALUES(?,?,?,?,?)"


def _row(key: int, message: Message) -> tuple[Any, ...]:
    ttl = message.ttl_s
    return (
        key,
        message.header,
        message.annotations,
        message.annotation_count,
        message.bare,
        message.size,
        message.enqueued_at,
        message.enqueued_sequence,
        message.scheduled_at,
        message.expires_at,
        None if ttl is None or ttl >= FOREVER_S else ttl,
        message.dead_letter_source,
        message.delivery_annotations,
    )


def _lease_row(key: int, message: Message) -> tuple[Any, ...]:
    state = int(message.state)
    return (key, message.delivery_count, state, message.token, message.locked_until)
