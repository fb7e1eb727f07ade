"""The broker's SQLite database: its tables, and how commits are brought into it."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from devstack.servicebus.log import Changes

FILE_NAME = "broker.sqlite3"
FORMAT = 4

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
    database.execute("PRAGMA secure_delete=OFF")
    database.execute("PRAGMA locking_mode=EXCLUSIVE")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    (found,) = database.execute("PRAGMA user_version").fetchone()
    if found not in {0, FORMAT}:
        raise StorageError(
            f"{directory} was written by another version of the broker (format {found}, this one "
            f"reads {FORMAT}); give --data another directory"
        )
    database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;")


class Kind:
    """The kinds of rows in a commit. Plain numbers, because the log is of plain values."""

    QUEUE, STORE, HISTORY, FORGOTTEN, SESSION, GONE, GONE_LEASE, MESSAGE, LEASE = range(9)


#: In the order in which a fold runs them.
_STATEMENTS = {
    Kind.QUEUE: "INSERT OR REPLACE INTO queue VALUES(?, ?, ?)",
    Kind.STORE: "INSERT OR REPLACE INTO store VALUES(?, ?, ?)",
    Kind.HISTORY: "INSERT OR REPLACE INTO history VALUES(?, ?, ?)",
    Kind.FORGOTTEN: "DELETE FROM history WHERE id >= ? AND id < ?",
    Kind.SESSION: "INSERT OR REPLACE INTO session VALUES(?, ?, ?, ?)",
    Kind.GONE: "DELETE FROM message WHERE id = ?",
    Kind.GONE_LEASE: "DELETE FROM lease WHERE id = ?",
    Kind.MESSAGE: "INSERT OR REPLACE INTO message VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)",
    Kind.LEASE: "INSERT OR REPLACE INTO lease VALUES(?,?,?,?,?)",
}


class Net:
    """What commits come to together, without the messages that came and went within them."""

    def __init__(self, commits: Iterable[Changes] = ()) -> None:
        self._rows: dict[int, list[Any]] = defaultdict(list)
        self._messages: dict[int, Any] = {}
        self._leases: dict[int, Any] = {}
        self._gone: dict[int, None] = {}
        for changes in commits:
            self.add(changes)

    def add(self, changes: Changes) -> None:
        """Add one commit to those before it."""
        for kind, new in changes:
            if kind == Kind.GONE:
                for key in new:
                    self._messages.pop(key, None)
                    self._leases.pop(key, None)
                    self._gone[key] = None
            elif kind == Kind.MESSAGE:
                for row in new:
                    self._messages[row[0]] = row
            elif kind == Kind.LEASE:
                for row in new:
                    self._leases[row[0]] = row
            else:
                self._rows[kind] += new

    def write(self, database: sqlite3.Connection) -> None:
        """Bring a database up to date, in one transaction. Raises sqlite3.Error."""
        rows = dict(self._rows)
        rows[Kind.GONE] = rows[Kind.GONE_LEASE] = [(key,) for key in self._gone]
        rows[Kind.MESSAGE], rows[Kind.LEASE] = [*self._messages.values()], [*self._leases.values()]
        if not any(rows.values()):
            return
        database.execute("BEGIN IMMEDIATE")
        try:
            for kind, statement in _STATEMENTS.items():
                database.executemany(statement, rows.get(kind, ()))
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")
