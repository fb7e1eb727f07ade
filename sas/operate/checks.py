"""Check what a command needs: settings, the table, the clock, the queues, and your rights.

Nothing is sent or changed. A check is ``ok``, ``wrong`` (its text says what to do), or ``unknown``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from sas.domain.queues import Queues
from sas.operate.errors import CommandError
from sas.operate.messages import QueueCount
from sas.operate.record import Record
from sas.operate.status import is_forbidden
from sas.ports import OperatorBus, StateStore, UnavailableError, UndeliverableError

OK, WRONG, UNKNOWN = "ok", "wrong", "unknown"
CLOCK_OFF_MAX = timedelta(seconds=5)
"""The clock of this machine may be off by so much."""
IN_ERROR_MAX = 1000
"""Orders in Error are counted up to this number."""


class Check(Record, frozen=True):
    """The result of one check. ``text`` says what it found, or what to do."""

    check: str
    state: str
    text: str


def setting(name: str, read: Callable[[], str]) -> Check:
    """Return whether a setting can be read: ``read`` describes it, or raises why not."""
    try:
        return Check(check=name, state=OK, text=read())
    except (CommandError, ValueError) as error:
        return Check(check=name, state=WRONG, text=str(error))


async def table(store: StateStore) -> Check:
    """Return whether the table answers to you."""
    name = "reading the table"
    try:
        count = len(await store.attention(IN_ERROR_MAX))
    except UnavailableError as error:
        return Check(check=name, state=WRONG, text=str(error))
    plus = "+" if count == IN_ERROR_MAX else ""
    return Check(check=name, state=OK, text=f"it answers; orders in Error: {count:,}{plus}")


def clock(here: datetime, service: datetime | None) -> Check:
    """Return whether the clock of this machine agrees with that of the table's service."""
    name = "clock of this machine"
    if service is None:
        return Check(check=name, state=UNKNOWN, text="the table's service does not tell the time")
    off = here - service
    seconds = abs(off.total_seconds())
    if abs(off) <= CLOCK_OFF_MAX:
        return Check(check=name, state=OK, text="it agrees with that of the table's service")
    direction = "ahead of" if off > timedelta() else "behind"
    text = (
        f"it is {seconds:,.0f} s {direction} that of the table's service. Set it (NTP): ages, "
        "--since and what is late are wrong here by as much"
    )
    return Check(check=name, state=WRONG, text=text)


def queues(counts: Sequence[QueueCount]) -> Iterable[Check]:
    """Yield whether queues can be read: one check for those that can, and one for each other.

    An operator needs to read only a few queues, so a missing right may be intended.
    """
    unreadable = [count for count in counts if count.problem]
    readable_count = len(counts) - len(unreadable)
    if readable_count:
        text = f"{readable_count:,} of {len(counts):,} can be read"
        yield Check(check="queues", state=OK, text=text)
    for count in unreadable:
        state = UNKNOWN if is_forbidden(count) else WRONG
        yield Check(check=f"reading {count.queue}", state=state, text=count.problem)


async def sending(bus: OperatorBus, names: Queues) -> Iterable[Check]:
    """Return whether you may send commands and orders."""
    checks: list[Check] = []
    for queue in (names.scheduler, names.orders):
        name = f"sending to {queue}"
        try:
            await bus.check_sending(queue)
        except (UnavailableError, UndeliverableError) as error:
            text = f"{error} Without it you can look, and not act"
            checks.append(Check(check=name, state=WRONG, text=text))
        else:
            checks.append(Check(check=name, state=OK, text="you may send"))
    return checks
