"""Why recent commands were refused, for the CLI that waits for an answer.

A refusal leaves no journal row, because that would make the pages of other operators stale. The
alert is the permanent record; the last few reasons are kept here too, for senders that may not read
alerts. To limit the number of rows they are in 256 shared values.
"""

from __future__ import annotations

from contextlib import suppress

from sas.domain.ids import digest_id
from sas.engine.shared_values import SharedValues
from sas.ports import ConflictError, StateStore

REASONS_MAX = 8
"""Most reasons in one shared value. A new one replaces the oldest."""
REASON_LENGTH_MAX = 1000
_TRIES = 5


class CommandAnswers:
    """Records why a command was refused, and reads it back."""

    def __init__(self, store: StateStore) -> None:
        # One value maps the hashes of command ids to reasons, the newest last.
        self._values = SharedValues[dict[str, str]](
            store, "refused|", dict[str, str], unreadable={}
        )

    async def record(self, command_id: str, reason: str) -> None:
        """Keep the reason. After repeated conflicts it is dropped: the alert has it too.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        key, name = digest_id(command_id), slot_of(command_id)
        for _ in range(_TRIES):
            before = await self._values.read(name)
            reasons = dict(before.value) if before else {}
            reasons.pop(key, None)
            reasons[key] = reason[:REASON_LENGTH_MAX]
            kept = dict(list(reasons.items())[-REASONS_MAX:])
            with suppress(ConflictError):
                await self._values.write(name, kept, before)
                return

    async def reason(self, command_id: str) -> str:
        """Return why a command was refused; an empty text if that is not known.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        found = await self._values.read(slot_of(command_id))
        return found.value.get(digest_id(command_id), "") if found else ""


def slot_of(command_id: str) -> str:
    """Return the name of the shared value that keeps a command's refusal: one of 256."""
    return digest_id(command_id)[:2]
