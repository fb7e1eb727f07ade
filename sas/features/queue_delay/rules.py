"""Queue delay, pure: what the queues of a step say about its passed CompleteBy.

A message of the step that waits in a queue excuses it: its agent had no time to answer. A queue
that moves, or that is away, excuses without limit. A queue that does not move is STUCK, which the
domain accepts only so many times. So is a queue where others decide what was read: applications
send to the queues of orders, and checks that come much later may lie in front of what waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sas.domain.change import Incident
from sas.domain.expire import REWAKE_MAX, Excuse
from sas.domain.messages import AlertKind
from sas.domain.order import StepRecord, StepState
from sas.domain.queues import scope_of
from sas.domain.workflow import NO_TIME, StepRules

SCHEDULED_MAX = timedelta(minutes=1)
"""A message scheduled for later than this does not wait: it is the next check of a long step."""
PUT_BACK_MAX = timedelta(hours=1)
"""The same for one that was put back: none of these queues puts it back for longer. An application
may say so of its own.
"""
MOVES_WITHIN = timedelta(minutes=5)
"""A queue moves if a message was seen to leave it within this time."""
AWAY_MIN = timedelta(minutes=1)
"""A queue that is away for longer is an incident. For a message that waits, a setting says how
long: functions that start take their time.
"""
SENT_WITHIN = timedelta(minutes=1)
"""A request that was recorded is in its queue after this time, by the clocks of both."""
Owner = tuple[str, int | None, int | None]
"""The order of a message; for a request also its step and its epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A message that was read in a queue. ``owner`` is None if the message belongs to no order."""

    message_id: str
    enqueued_at: datetime
    owner: Owner | None
    put_back: bool = False

    def waits(self, now: datetime) -> bool:
        """Return whether a function will receive it soon, and it belongs to an order."""
        is_later = comes_much_later(self.enqueued_at, now, put_back=self.put_back)
        return self.owner is not None and not is_later


def comes_much_later(at: datetime, now: datetime, *, put_back: bool) -> bool:
    """Return whether a message comes too late to excuse a step. ``put_back``: it came before."""
    return at > now + (PUT_BACK_MAX if put_back else SCHEDULED_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The oldest messages of one queue, by owner, with the time since when each can be received.

    A message that is locked is among them: Service Bus does not tell it from one that waits. So the
    request of a worker that was killed excuses its step until the lock ends, at most half a minute.
    Then it is redelivered.

    ``full`` says that there may be more, and ``is_long`` that at least half of what was read
    waits: else something else fills the queue. Of those that wait, the last one that was read has
    waited since ``last_at``. ``put_back`` are the owners of messages that were put back, because
    something else is away. ``away_since`` is set if it could not be read.
    """

    at: datetime
    oldest: dict[Owner, datetime]
    put_back: frozenset[Owner] = frozenset()
    ids: frozenset[str] = frozenset()
    full: bool = False
    is_long: bool = False
    last_at: datetime | None = None
    moved_at: datetime | None = None
    away_since: datetime | None = None

    @property
    def moves(self) -> bool:
        """Whether a message was seen to leave the queue lately."""
        return self.moved_at is not None and self.at - self.moved_at <= MOVES_WITHIN


def scan_of(messages: Sequence[Seen], before: Scan | None, now: datetime, *, full: bool) -> Scan:
    """Return what was read of a queue. ``before``: its last scan, which shows whether it moves."""
    waiting = [message for message in messages if message.waits(now)]
    visible = [message for message in waiting if message.enqueued_at <= now]
    ids = frozenset(message.message_id for message in visible)
    moved_at = before.moved_at if before else None
    if before and before.ids - ids:
        moved_at = now
    oldest: dict[Owner, datetime] = {}
    for message in waiting:
        if message.owner is not None:
            at = message.enqueued_at
            oldest[message.owner] = min(at, oldest.get(message.owner, at))
    return Scan(
        at=now,
        oldest=oldest,
        put_back=frozenset(each.owner for each in waiting if each.put_back and each.owner),
        ids=ids,
        full=full,
        is_long=full and 2 * len(waiting) >= len(messages),
        last_at=max((message.enqueued_at for message in visible), default=None),
        moved_at=moved_at,
    )


def away_scan(before: Scan | None, now: datetime) -> Scan:
    """Return the scan of a queue that could not be read."""
    return Scan(at=now, oldest={}, away_since=(before and before.away_since) or now)


def is_decided(scan: Scan, request: Owner) -> bool:
    """Return whether the agent's queue alone decides: it is away, or has the request."""
    return excuse_of(scan, request) is Excuse.AWAY or scan.oldest.get(request, scan.at) < scan.at


def last_send(step: StepRecord, rule: StepRules) -> datetime:
    """Return when the last request of a step was sent, at the latest.

    It was sent when the step was claimed, or when its agent last asked for more time.
    """
    allowed = rule.time_allowed if step.process_state is StepState.PROCESSING else rule.undo_time
    asked_at = (step.complete_by or step.since) - allowed
    return max(step.since, asked_at) + SENT_WITHIN


def waits_since(scan: Scan, owner: Owner, sent_at: datetime | None = None) -> datetime | None:
    """Return since when a message waits in a queue, or may wait there; None if none does.

    It may wait behind the messages that were read, or in a queue that could not be read. A message
    that was sent at ``sent_at`` does not wait behind a younger one. None: it is sent at any time.
    """
    since = scan.away_since or scan.oldest.get(owner)
    if since is not None or not scan.full:
        return since
    if not scan.is_long and sent_at and scan.last_at and sent_at <= scan.last_at:
        return None
    return min(scan.oldest.values(), default=scan.at)


def excuse_of(scan: Scan, owner: Owner, sent_at: datetime | None = None) -> Excuse | None:
    """Return the excuse that a queue gives to the step of a message. See ``waits_since``."""
    since = waits_since(scan, owner, sent_at)
    if since is None:
        return None
    if scan.away_since is not None or owner in scan.put_back:
        return Excuse.AWAY
    if owner not in scan.oldest:
        if not scan.is_long:
            return Excuse.STUCK
        if scan.put_back:  # behind those that were read, it waits for the same reason as they do
            return Excuse.AWAY
    return Excuse.WAITS if scan.moves and since < scan.at else Excuse.STUCK


def best_of(excuses: Iterable[Excuse | None]) -> Excuse | None:
    """Return the excuse that wins: a queue that moves, then one that is away, then a stuck one."""
    candidates = set(excuses)
    ranking = (Excuse.WAITS, Excuse.AWAY, Excuse.STUCK)
    return next((excuse for excuse in ranking if excuse in candidates), None)


def is_short(scan: Scan, delay_min: timedelta) -> bool:
    """Return whether a queue could be read, and no message waits for ``delay_min`` in it."""
    since = min(scan.oldest.values(), default=scan.at)
    return not (scan.away_since or scan.is_long) and scan.at - since < delay_min


def incident_of(
    queue: str,
    scan: Scan,
    *,
    since: datetime,
    step: StepRecord,
    reported_at: datetime | None,
    delay_min: timedelta,
) -> Incident | None:
    """Return the incident of a queue where a message waits for long, or that is away for long.

    ``delay_min`` says what is long for a message. None: it does not last long enough, or was
    reported just now.
    """
    waited = scan.at - since
    enough = delay_min if scan.away_since is None else AWAY_MIN
    if waited < enough or (reported_at and scan.at - reported_at < SCHEDULED_MAX):
        return None
    text = (
        f"Messages wait {waited.total_seconds():.0f} s in queue {queue} before they are "
        "received. Nothing is lost, and steps get more time. If it lasts, check that the "
        "function of that queue runs, and that it has enough instances."
    )
    if scan.away_since is not None:
        text = (
            f"Queue {queue} cannot be read. Steps that may wait in it get more time. Check "
            "that the queue exists, that it is enabled, and that this app may read it."
        )
    # The step is tried again after as long as it has waited: until then it is not over.
    until = scan.at + MOVES_WITHIN + min(max(scan.at - step.since, NO_TIME), REWAKE_MAX)
    return Incident(
        kind=AlertKind.QUEUE_DELAY, scope=scope_of(queue), text=text, since=since, until=until
    )
