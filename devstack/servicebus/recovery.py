"""Reading a broker's data back after a stop or a crash: queues, messages, locks, sessions."""

import json
import logging
import sqlite3
from typing import Any

from devstack.servicebus.amqp import decode
from devstack.servicebus.core.changes import forward_waiting
from devstack.servicebus.core.errors import EntityNotFoundError
from devstack.servicebus.core.message import Message, MessageState, read_identity
from devstack.servicebus.core.namespace import Namespace
from devstack.servicebus.core.properties import QueueProperties
from devstack.servicebus.core.queue import QueueCore
from devstack.servicebus.storage import SHIFT, SqliteJournal

_log = logging.getLogger("devstack.servicebus")
_MASK = (1 << SHIFT) - 1


def recover_queues(database: sqlite3.Connection, namespace: Namespace) -> None:
    """Create the queues that the data knows and the configuration does not: nothing is dropped."""
    known = {queue.name.lower() for queue in namespace}
    rows = database.execute("SELECT name, properties, created_at FROM queue").fetchall()
    for name, properties, created_at in rows:
        if name.lower() not in known:
            settings = QueueProperties.from_official(json.loads(properties))
            namespace.create(name, settings, created_at)


def recover_messages(journal: SqliteJournal, namespace: Namespace, now: float) -> int:
    """Put everything back where it was; return how many messages there are.

    A message lock goes on where it has not ended; a session's lock ended with the connection
    that held it.
    """
    database = journal.database
    queues: dict[int, QueueCore] = {}
    for name, store, reserved in database.execute("SELECT name, id, reserved FROM store"):
        try:
            queue = namespace.find(name)
        except EntityNotFoundError:
            _log.warning("the data of queue '%s' is kept, but no such queue is configured", name)
            continue
        queues[store] = queue
        queue.last_sequence = reserved
    leases = {row[0]: row[1:] for row in database.execute("SELECT * FROM lease")}
    held: list[tuple[QueueCore, Message, bytes]] = []
    count = 0
    for row in database.execute("SELECT * FROM message ORDER BY id"):
        key, found = row[0], queues.get(row[0] >> SHIFT)
        if found is None:
            continue
        message = _message(row)
        token = _apply_lease(message, leases.get(key))
        count += 1
        if token is not None and found.sessions is None:
            found.keep(message)
            held.append((found, message, token))
        else:
            found.restore(message, now)
    for queue, message, token in sorted(held, key=lambda entry: entry[1].locked_until):
        queue.restore_lock(message, token)
    for queue in queues.values():
        forward_waiting(queue, now)
    _recover_history(database, queues)
    _recover_sessions(database, queues)
    return count


def _message(row: tuple[Any, ...]) -> Message:
    message = Message()
    message.sequence = row[0] & _MASK
    (
        message.header,
        message.annotations,
        message.annotation_count,
        message.bare,
        message.size,
        message.enqueued_at,
        message.enqueued_sequence,
        message.scheduled_at,
        message.expires_at,
        message.ttl_s,
        message.dead_letter_source,
        message.delivery_annotations,
    ) = row[1:]
    read_identity(message)
    return message


def _apply_lease(message: Message, lease: tuple[Any, ...] | None) -> bytes | None:
    if lease is None:
        return None
    message.delivery_count, state, token, message.locked_until = lease
    message.state = MessageState(state)
    return bytes(token) if token is not None else None


def _recover_history(database: sqlite3.Connection, queues: dict[int, QueueCore]) -> None:
    # An id that came again after its window is there twice: the later one counts.
    latest: dict[tuple[int, bytes], tuple[float, int]] = {}
    for key, raw, at in database.execute("SELECT id, message_id, at FROM history ORDER BY id"):
        place = (key >> SHIFT, raw)
        latest.pop(place, None)
        latest[place] = (at, key & _MASK)
    for (store, raw), (at, sequence) in latest.items():
        queue = queues.get(store)
        if queue is not None:
            queue.history.remember(decode.decode(raw)[0], at, sequence)


def _recover_sessions(database: sqlite3.Connection, queues: dict[int, QueueCore]) -> None:
    rows = database.execute("SELECT store, id, state, updated_at FROM session")
    for store, session_id, state, updated_at in rows:
        queue = queues.get(store)
        if queue is not None and queue.sessions is not None and state is not None:
            session = queue.sessions.open(session_id)
            session.state, session.updated_at = state, updated_at
