"""The log: every commit since the database was last brought up to date, each in one write.

A record is the size and the CRC-32 of its content (two unsigned integers of 32 bits, big-endian),
then the content: `marshal` of version 2, which no Python from 3.8 to 3.13 writes differently (one
test holds the bytes, another reads under one Python what another one left). A killed process
loses nothing that was written. What a power failure or a full disk leaves torn ends the log: it
was never acknowledged.
"""

import errno
import logging
import marshal
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

#: What one commit changes: pairs of a kind of row and the rows, in order.
Changes = list[tuple[int, list[Any]]]

_log = logging.getLogger("devstack.servicebus")
_HEAD = struct.Struct(">II")
_MARSHAL_VERSION = 2  # the newest without a table of references, which costs time and saves nothing


class LogError(Exception):
    """A record that was written whole and cannot be read; the message says what to do."""


class CommitLog:
    """Commits that wait to be brought into the database. Numbers, text and bytes only."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.size = os.fstat(self._file).st_size

    def append(self, changes: Changes) -> None:
        """Write one commit. Raises OSError where the disk does not take all of it."""
        content = marshal.dumps(changes, _MARSHAL_VERSION)
        record = _HEAD.pack(len(content), crc32(content)) + content
        if os.write(self._file, record) != len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += len(record)

    def read(self) -> Iterator[Changes]:
        """Give every whole commit, in order. Raises LogError where one is of another format."""
        with open(self._file, "rb", closefd=False) as file:
            file.seek(0)
            data = file.read()
        position = 0
        while position + _HEAD.size <= len(data):
            size, checksum = _HEAD.unpack_from(data, position)
            end = position + _HEAD.size + size
            content = data[position + _HEAD.size : end]
            if len(content) < size or crc32(content) != checksum:
                break
            position = end
            yield _read(content)
        if position < len(data):
            _log.warning("the last %d bytes of the log are torn; dropped", len(data) - position)

    def clear(self) -> None:
        """Forget every commit: the database has them."""
        os.ftruncate(self._file, 0)
        self.size = 0

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def _read(content: bytes) -> Changes:
    try:
        found = marshal.loads(content)  # noqa: S302 (our own file, and the checksum held)
    except (EOFError, TypeError, ValueError):
        found = None
    if not isinstance(found, list):
        raise LogError(
            "its log was written by another version of the broker; start that one once and stop "
            "it, or give --data another directory"
        )
    return found
