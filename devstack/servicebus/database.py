"""The broker's SQLite database: its tables, and how a log of commits is brought into it."""

import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

from devstack.servicebus.log import CommitLog

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


def fold(log: CommitLog, database: sqlite3.Connection) -> None:
    """Bring a database up to date with a log, in one transaction. Raises sqlite3.Error."""
    rows = _net_rows(log)
    if not rows:
        return
    database.execute("BEGIN IMMEDIATE")
    try:
        for kind, statement in _STATEMENTS.items():
            database.executemany(statement, rows.get(kind, ()))
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _net_rows(log: CommitLog) -> dict[int, list[Any]]:
    """Sum up a log: the rows of each kind, without messages that came and went within it."""
    rows: dict[int, list[Any]] = defaultdict(list)
    messages: dict[int, Any] = {}
    leases: dict[int, Any] = {}
    gone: dict[int, None] = {}
    for changes in log.read():
        for kind, new in changes:
            if kind == Kind.GONE:
                for key in new:
                    messages.pop(key, None)
                    leases.pop(key, None)
                    gone[key] = None
            elif kind == Kind.MESSAGE:
                messages.update((row[0], row) for row in new)
            elif kind == Kind.LEASE:
                leases.update((row[0], row) for row in new)
            else:
                rows[kind] += new
    rows[Kind.GONE] = rows[Kind.GONE_LEASE] = [(key,) for key in gone]
    rows[Kind.MESSAGE], rows[Kind.LEASE] = list(messages.values()), list(leases.values())
    return {kind: found for kind, found in rows.items() if found}
