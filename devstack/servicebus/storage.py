"""What survives ``kill -9``: everything acknowledged, in a SQLite database and the log before it.

The queues write down what changes as they go; nothing touches the disk until `commit`, which the
server calls before any acknowledgement leaves. A commit is one write to the log (log.py); once the
log is long, `fold` brings the database up to date and empties it. Most messages are gone by then
and never reach the database. A killed process loses nothing; a power failure may lose the last
moments but never tears a commit, because the database is flushed before the log is emptied. Every
row says how things are now, not what to add, so a fold that was cut short is done again unharmed.

Rows are keyed ``store << 44 | sequence``, one store for each queue and sub-queue. What changes
often (lock, delivery count, state) is a small row of its own, so that a delivery does not
rewrite the body.
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
from devstack.servicebus.database import Kind, Net, StorageError, open_database
from devstack.servicebus.log import Changes, CommitLog, LogError

LOG_NAME = "broker.log"
SHIFT = 44
_RESERVE = 1000
_FORGET_EVERY = 256
_FOLD_BYTES = 2 << 20


class SqliteJournal:
    """Gathers what the queues change and writes it at once. See ports.Journal."""

    def __init__(self, directory: Path) -> None:
        """Open the files, or make them. Raises StorageError with a sentence."""
        self.database = open_database(directory)
        try:
            self.log = CommitLog(directory / LOG_NAME)
            self._net = Net(self.log.read())
            self.fold()
        except LogError as error:
            self.abandon()
            raise StorageError(f"{directory} cannot be used: {error}") from None
        except (OSError, sqlite3.Error) as error:
            self.database.close()
            raise StorageError(
                f"the log in {directory} cannot be brought into its database ({error}); see that "
                "both can be written and that the disk has room"
            ) from None
        self.stores: dict[str, int] = dict(self.database.execute("SELECT name, id FROM store"))
        self._reserved: dict[int, int] = dict(
            self.database.execute("SELECT id, reserved FROM store")
        )
        self._id_of: dict[QueueCore, int] = {}
        self._reservations: dict[int, int] = {}
        self._definitions: dict[str, QueueCore] = {}
        self._messages: dict[int, Message] = {}
        self._leases: dict[int, Message] = {}
        self._gone: list[int] = []
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
        self.fold()
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
        """Make durable what was gathered. Raises OSError, sqlite3.Error where the disk fails."""
        changes = self._rare_changes()
        if self._gone:
            changes.append((Kind.GONE, self._gone))
            self._gone = []
        if self._messages:
            changes.append((Kind.MESSAGE, [_row(k, m) for k, m in self._messages.items()]))
            self._messages = {}
        if self._leases:
            changes.append((Kind.LEASE, [_lease_row(k, m) for k, m in self._leases.items()]))
            self._leases = {}
        if changes:
            self.log.append(changes)
            self._net.add(changes)
            if self.log.size > _FOLD_BYTES:
                self.fold()

    def _rare_changes(self) -> Changes:
        changes: Changes = []
        if self._definitions:
            rows: list[Any] = [
                (queue.name, json.dumps(queue.properties.to_official()), queue.created_at)
                for queue in self._definitions.values()
            ]
            changes.append((Kind.QUEUE, rows))
            self._definitions = {}
        if self._reservations:
            names = {store: name for name, store in self.stores.items()}
            rows = [(store, names[store], to) for store, to in self._reservations.items()]
            changes.append((Kind.STORE, rows))
            self._reservations = {}
        if self._history:
            rows = [(key, raw, at) for key, (raw, at) in self._history.items()]
            changes.append((Kind.HISTORY, rows))
            self._history = {}
        if self._forgotten:
            firsts = ((store << SHIFT, oldest) for store, oldest in self._forgotten.items())
            changes.append((Kind.FORGOTTEN, [(first, first | oldest) for first, oldest in firsts]))
            self._forgotten = {}
        if self._sessions:
            rows = [(*key, it.state, it.updated_at) for key, it in self._sessions.items()]
            changes.append((Kind.SESSION, rows))
            self._sessions = {}
        return changes

    def fold(self) -> None:
        """Bring the database up to date with the log, and empty the log.

        Raises sqlite3.Error, and then the log is still there.
        """
        self._net.write(self.database)
        self._net = Net()
        self.log.clear()

    def close(self) -> None:
        """Write what is left and let go of the files."""
        try:
            self.commit()
            self.fold()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the files without writing."""
        self.log.close()
        self.database.close()


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
