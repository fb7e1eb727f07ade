"""Check what a command needs: settings, the table, the clock, the queues, and your rights.

Nothing is sent or changed. A check is ``ok``, ``wrong`` (its text says what to do), or ``unknown``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta

from sas.operate.errors import CommandError, NotPossibleError
from sas.operate.messages import QueueCount
from sas.operate.record import Record
from sas.operate.status import is_forbidden
from sas.ports import UnavailableError, UndeliverableError

OK, WRONG, UNKNOWN = "ok", "wrong", "unknown"
CLOCK_OFF_MAX = timedelta(seconds=5)
"""The clock of this machine may be off by so much."""


class Check(Record, frozen=True):
    """The result of one check. ``text`` says what it found, or what to do."""

    check: str
    state: str
    text: str


async def checked(name: str, look: Callable[[], Awaitable[str]]) -> Check:
    """Return a check: ``look`` describes what it checks, or raises why it is wrong.

    It returns an empty text if it cannot know.
    """
    try:
        text = await look()
    except (CommandError, ValueError, UnavailableError, UndeliverableError) as error:
        return Check(check=name, state=WRONG, text=str(error))
    return Check(check=name, state=OK if text else UNKNOWN, text=text or "it cannot be checked")


def clock(here: datetime, service: datetime | None) -> str:
    """Return that the clock of this machine agrees with that of the table's service.

    The text is empty if the service does not tell the time.

    Raises:
        NotPossibleError: the clock is off.
    """
    if service is None:
        return ""
    off = here - service
    if abs(off) <= CLOCK_OFF_MAX:
        return "it agrees with that of the table's service"
    direction = "ahead of" if off > timedelta() else "behind"
    raise NotPossibleError(
        f"it is {abs(off.total_seconds()):,.0f} s {direction} that of the table's service. Set it "
        "(NTP): ages, --since and what is late are wrong here by as much"
    )


def queues(counts: Sequence[QueueCount]) -> Iterable[Check]:
    """Yield whether queues can be read: one check for those that can, and one for each other.

    An operator needs to read only a few queues, so a missing right may be intended.
    """
    unreadable = [count for count in counts if count.problem]
    if readable_count := len(counts) - len(unreadable):
        text = f"{readable_count:,} of {len(counts):,} can be read"
        yield Check(check="queues", state=OK, text=text)
    for count in unreadable:
        state = UNKNOWN if is_forbidden(count) else WRONG
        yield Check(check=f"reading {count.queue}", state=state, text=count.problem)
