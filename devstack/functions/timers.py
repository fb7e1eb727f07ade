"""Timer triggers: runs never overlap, and the next occurrence counts from the end of a run.

With `use_monitor` (the default) a file keeps the status. After a restart one missed run is made
up (`past_due`), however many were missed. An exception does not stop the schedule. Schedules are
in UTC, as in Azure without WEBSITE_TIME_ZONE.

In Azure a blob lease makes a timer a singleton over all instances. Here each host process runs
its own timers. In a stack, put a timer in one group only, or write a function that tolerates two
runs at once, as Azure asks for too.
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
_EARLY = timedelta(milliseconds=1)  # asyncio may wake slightly before the wall clock
_LATE = timedelta(seconds=1)
_SLEEP_S_MAX = 3600.0
_MONITORED_INTERVAL_MIN = timedelta(minutes=1)
_NO_LAST_RUN = datetime(1, 1, 1, tzinfo=UTC)

Clock = Callable[[], datetime]


@dataclass
class ScheduleStatus:
    """The last and the next run of a timer, and the time of this status."""

    last: datetime
    next: datetime
    last_updated: datetime

    def to_json(self) -> dict[str, str]:
        """The form of the Functions host, which `TimerRequest.schedule_status` shows."""
        moments = {"Last": self.last, "Next": self.next, "LastUpdated": self.last_updated}
        return {name: moment.isoformat() for name, moment in moments.items()}

    @classmethod
    def from_json(cls, content: dict[str, str]) -> "ScheduleStatus":
        """Read what `to_json` wrote; raises ValueError, KeyError or TypeError for other content."""
        found = [datetime.fromisoformat(content[name]) for name in ("Last", "Next", "LastUpdated")]
        if any(moment.tzinfo is None for moment in found):
            raise ValueError("a time has no zone")
        return cls(*found)


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
        """`finish` sends the outputs. Without `status_dir` a restart forgets the last run.

        `pace` is the number of seconds of `clock` in one real second.
        """
        assert isinstance(function.trigger, TimerTrigger)  # noqa: S101  # for mypy
        self.trigger = function.trigger
        self._function = function
        self._invoker = invoker
        self._finish = finish
        self._clock = clock
        self._pace = pace
        first = self._next(clock())
        # As in Azure, where schedules below one minute are never monitored.
        interval = self._next(first) - first
        self._monitored = self.trigger.use_monitor and interval >= _MONITORED_INTERVAL_MIN
        self._file: Path | None = None
        if self._monitored and status_dir is not None:
            self._file = status_dir / f"timer-{function.name}.json"
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Start no more runs; `run` returns when the current one has ended."""
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
            status = await self._fire(status, due, past_due=self._clock() - due > _LATE)

    def _next(self, after: datetime) -> datetime:
        schedule = self.trigger.schedule
        if isinstance(schedule, timedelta):
            return after + schedule
        return schedule.next_after(after) or datetime.max.replace(tzinfo=UTC)

    async def _sleep_until(self, due: datetime) -> bool:
        """Return False when the timer is stopped."""
        while (left := due - self._clock()) > _EARLY:
            try:
                left_s = min(left.total_seconds(), _SLEEP_S_MAX) / self._pace
                await asyncio.wait_for(self._stopping.wait(), left_s)
            except TimeoutError:
                continue
            return False
        return not self._stopping.is_set()

    async def _fire(
        self, before: ScheduleStatus | None, due: datetime, *, past_due: bool
    ) -> ScheduleStatus:
        started = self._clock()
        shown = before or ScheduleStatus(_NO_LAST_RUN, self._next(started), started)
        content: dict[str, Any] = {
            "Schedule": {"AdjustForDST": True},
            "ScheduleStatus": shown.to_json() if self._monitored else None,
            "IsPastDue": past_due,
        }
        try:
            datum = Datum(json.dumps(content), "json")
            reason = f"Timer fired at {started.isoformat()}"
            result = await self._invoker.invoke(self._function, datum, {}, reason=reason)
            await self._finish(self._function, result)
        except Exception as error:  # noqa: BLE001  # the invoker logged it; a timer goes on
            _log.debug("timer %s goes on after %r", self._function.name, error)
        # Never before `due`: an early wake-up must not run the same occurrence twice.
        after = max(self._clock(), due)
        status = ScheduleStatus(started, self._next(after), self._clock())
        self._write(status)
        return status

    def _read(self) -> ScheduleStatus | None:
        if self._file is None or not self._file.exists():
            return None
        try:
            content = json.loads(self._file.read_text())
            if content["Schedule"] != self.trigger.text:
                return None  # the app has a new schedule: its old due times do not count
            return ScheduleStatus.from_json(content)
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
