"""Answers to commands that were refused: why, for the command-line tool that waits for an answer.

A refusal changes no order, so it leaves no journal row. A row would raise the order's seq, and the
commands that other operators are about to send would be refused as stale. The alert is the
permanent record of a refusal. Its sender may not have the right to read alerts, so the last few
reasons are stored here too.

They are stored in 256 shared values, to limit the number of rows. The hash of a command's id says
which of them has its answer.
"""

from __future__ import annotations

from contextlib import suppress

from sas.domain.ids import digest_id
from sas.domain.texts import shortened
from sas.engine.shared_values import SharedValues
from sas.ports import ConflictError, StateStore

REASONS_MAX = 8
"""Most reasons in one shared value. A new one replaces the oldest."""
REASON_LENGTH_MAX = 1000
_TRIES = 5


class CommandAnswers:
    """Stores why a command was refused, and reads it back."""

    def __init__(self, store: StateStore) -> None:
        # One value maps the hashes of command ids to reasons, the newest last.
        self._values = SharedValues[dict[str, str]](
            store, "refused|", dict[str, str], unreadable={}
        )

    async def record(self, command_id: str, reason: str) -> None:
        """Store the reason. After repeated conflicts it is dropped: the alert has it too.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        key, name = digest_id(command_id), slot_of(command_id)
        for _ in range(_TRIES):
            before = await self._values.read(name)
            reasons = dict(before.value) if before else {}
            reasons.pop(key, None)
            reasons[key] = shortened(reason, REASON_LENGTH_MAX)
            newest = dict(list(reasons.items())[-REASONS_MAX:])
            with suppress(ConflictError):
                await self._values.write(name, newest, before)
                return

    async def reason(self, command_id: str) -> str:
        """Return why a command was refused; an empty text if that is not known.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        reasons = await self._values.read(slot_of(command_id))
        return reasons.value.get(digest_id(command_id), "") if reasons else ""


def slot_of(command_id: str) -> str:
    """Return the name of the shared value that has the answer to a command: one of 256."""
    return digest_id(command_id)[:2]
