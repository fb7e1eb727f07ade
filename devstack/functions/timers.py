"""Timer triggers: no overlap, the next occurrence computed after the run has ended.

With `use_monitor` (the default) the last run is kept in a file, so that after a restart one
missed occurrence is made up for (once, `past_due`), however many were missed. An exception
never stops the schedule. Schedules are in UTC, as in Azure without WEBSITE_TIME_ZONE.

In Azure a blob lease makes a timer a singleton over all instances. Here each host process
runs its own timers: in a stack name a timer in one group only, or rely on what Azure asks
for anyway, that two runs at once do no harm.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from azure.functions.meta import Datum

from devstack.functions.bindings import TimerTrigger
from devstack.functions.indexing import IndexedFunction
from devstack.functions.invocation import Invoker

_log = logging.getLogger("devstack.functions")
# A sleep of asyncio may end a hair early by the wall clock.
_EARLY = timedelta(milliseconds=1)
_LONGEST_SLEEP_S = 3600.0
_MONITOR_FROM = timedelta(minutes=1)

Clock = Callable[[], datetime]


@dataclass
class ScheduleStatus:
    """When a timer ran last, when it runs next, and when that was written down."""

    last: datetime | None
    next: datetime
    last_updated: datetime

    def to_json(self) -> dict[str, str]:
        """As the host writes it, and as `TimerRequest.schedule_status` shows it."""
        return {
            "Last": _stamp(self.last) if self.last else "0001-01-01T00:00:00+00:00",
            "Next": _stamp(self.next),
            "LastUpdated": _stamp(self.last_updated),
        }


class Timer:
    """Runs one timer function on its schedule."""

    def __init__(
        self,
        function: IndexedFunction,
        invoker: Invoker,
        *,
        finish: Callable[[IndexedFunction, Any], Any],
        status_dir: Path | None,
        clock: Clock = lambda: datetime.now(UTC),
        pace: float = 1.0,
    ) -> None:
        """`finish` sends the outputs. `status_dir` None remembers nothing over restarts.

        `pace` says how many seconds of `clock` pass in one real second.
        """
        assert isinstance(function.trigger, TimerTrigger)  # noqa: S101  # for mypy
        self.trigger = function.trigger
        self._function = function
        self._invoker = invoker
        self._finish = finish
        self._clock = clock
        self._pace = pace
        self._monitored = self._is_monitored()
        self._file: Path | None = None
        if self._monitored and status_dir is not None:
            self._file = status_dir / f"timer-{function.name}.json"
        self._stopping = asyncio.Event()
        self.in_hand = 0

    def stop(self) -> None:
        """Start no more runs; `run` returns when the one in hand has ended."""
        self._stopping.set()

    async def run(self) -> None:
        """Run the schedule until `stop`."""
        status = self._read()
        now = self._clock()
        past_due = status is not None and status.next <= now
        if self.trigger.run_on_startup or past_due:
            status = await self._fire(status, now, past_due=past_due)
        while not self._stopping.is_set():
            due = self._next(self._clock()) if status is None else status.next
            if not await self._sleep_until(due):
                return
            late = self._clock() - due > timedelta(seconds=1)
            status = await self._fire(status, due, past_due=late)

    def _next(self, after: datetime) -> datetime:
        schedule = self.trigger.schedule
        if isinstance(schedule, timedelta):
            return after + schedule
        found = schedule.next_after(after)
        return found if found is not None else datetime.max.replace(tzinfo=UTC)

    async def _sleep_until(self, due: datetime) -> bool:
        while (left := due - self._clock()) > _EARLY:
            try:
                left_s = min(left.total_seconds(), _LONGEST_SLEEP_S) / self._pace
                await asyncio.wait_for(self._stopping.wait(), left_s)
            except TimeoutError:
                continue
            return False
        return not self._stopping.is_set()

    async def _fire(
        self, before: ScheduleStatus | None, due: datetime, *, past_due: bool
    ) -> ScheduleStatus:
        started = self._clock()
        self.in_hand = 1
        try:
            datum = self._datum(before, started, past_due=past_due)
            reason = f"Timer fired at {_stamp(started)}"
            result = await self._invoker.invoke(self._function, datum, {}, reason=reason)
            await self._finish(self._function, result)
        except Exception as error:  # noqa: BLE001  # logged by the invoker; a timer goes on
            _log.debug("timer %s goes on after %r", self._function.name, error)
        finally:
            self.in_hand = 0
        # Never before `due`: a wake-up a hair early must not make the same occurrence next.
        after = max(self._clock(), due)
        status = ScheduleStatus(started, self._next(after), self._clock())
        self._write(status)
        return status

    def _datum(self, before: ScheduleStatus | None, now: datetime, *, past_due: bool) -> Datum:
        status = before or ScheduleStatus(None, self._next(now), now)
        content: dict[str, Any] = {
            "Schedule": {"AdjustForDST": True},
            "ScheduleStatus": status.to_json() if self._monitored else None,
            "IsPastDue": past_due,
        }
        return Datum(json.dumps(content), "json")

    def _is_monitored(self) -> bool:
        """As in Azure, where schedules of less than a minute are never monitored."""
        first = self._next(self._clock())
        return self.trigger.use_monitor and self._next(first) - first >= _MONITOR_FROM

    def _read(self) -> ScheduleStatus | None:
        if self._file is None or not self._file.exists():
            return None
        try:
            content = json.loads(self._file.read_text())
            if content["Schedule"] != self.trigger.text:
                return None  # another schedule: what was due then is not due now
            return ScheduleStatus(
                *(_moment(content[name]) for name in ("Last", "Next", "LastUpdated"))
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("%s is not readable (%s): the timer starts afresh", self._file, error)
            return None

    def _write(self, status: ScheduleStatus) -> None:
        if self._file is None:
            return
        fresh = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps({**status.to_json(), "Schedule": self.trigger.text}))
            fresh.replace(self._file)
        except OSError as error:
            _log.warning("%s cannot be written (%s): the timer goes on", self._file, error)


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no zone")
    return found


def _stamp(moment: datetime) -> str:
    return moment.isoformat()
