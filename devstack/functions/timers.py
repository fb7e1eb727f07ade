"""Timer triggers: runs never overlap, because the next occurrence counts from the end of a run.

With `use_monitor` (the default) a file keeps the status over a restart, if the schedule has a
minute or more between two runs. If runs were missed meanwhile, the timer runs once after the
restart (`past_due`), and not once for each missed run. An exception does not stop the schedule.
Schedules are in UTC, as in Azure without WEBSITE_TIME_ZONE.

In Azure a blob lease makes a timer a singleton over all instances. Here the primary process of
each group runs the timers of the group, so put a timer in one group of a stack only.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from azure.functions.meta import Datum

from devstack.functions.bindings import TimerTrigger
from devstack.functions.indexing import IndexedFunction
from devstack.functions.invocation import Invoker, Result

_log = logging.getLogger("devstack.functions")
_EARLY = timedelta(milliseconds=1)  # asyncio may wake slightly before the wall clock
_LATE = timedelta(seconds=1)
_SLEEP_S_MAX = 3600.0
_MONITORED_INTERVAL_MIN = timedelta(minutes=1)
_KEYS = ("Last", "Next", "LastUpdated")
_NO_LAST_RUN = datetime(1, 1, 1, tzinfo=UTC)


class _Status(NamedTuple):
    """The times of a timer's last run, of its next run, and of the last change of this status."""

    last: datetime
    next: datetime
    last_updated: datetime

    def to_json(self) -> dict[str, str]:
        """The status as the Functions host writes it, for `TimerRequest.schedule_status`."""
        return {key: moment.isoformat() for key, moment in zip(_KEYS, self, strict=True)}


@dataclass(kw_only=True)
class Timer:
    """Runs one timer function on its schedule."""

    function: IndexedFunction
    trigger: TimerTrigger
    invoker: Invoker
    send_outputs: Callable[[IndexedFunction, Result], Awaitable[None]]
    status_dir: Path | None
    """The directory of the status file; None means that a restart forgets the last run."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    pace: float = 1.0
    """How many seconds `clock` advances in one real second."""

    def __post_init__(self) -> None:
        first = self._next(self.clock())
        # As in Azure, where schedules below one minute are never monitored.
        interval = self._next(first) - first
        self._monitored = self.trigger.use_monitor and interval >= _MONITORED_INTERVAL_MIN
        self._file: Path | None = None
        if self._monitored and self.status_dir is not None:
            self._file = self.status_dir / f"timer-{self.function.name}.json"
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Start no more runs; `run` returns when the current one has ended."""
        self._stopping.set()

    async def run(self) -> None:
        """Run the schedule until `stop`."""
        status = self._read()
        now = self.clock()
        past_due = status is not None and status.next <= now
        if self.trigger.run_on_startup or past_due:
            status = await self._fire(status, now, past_due=past_due)
        while not self._stopping.is_set():
            due = self._next(self.clock()) if status is None else status.next
            if not await self._sleep_until(due):
                return
            status = await self._fire(status, due, past_due=self.clock() - due > _LATE)

    def _next(self, moment: datetime) -> datetime:
        """The first occurrence after `moment`."""
        schedule = self.trigger.schedule
        if isinstance(schedule, timedelta):
            return moment + schedule
        return schedule.next_after(moment) or datetime.max.replace(tzinfo=UTC)

    async def _sleep_until(self, due: datetime) -> bool:
        """Sleep until `due`, and return True; return False as soon as the timer is stopped."""
        while not self._stopping.is_set() and (wait := due - self.clock()) > _EARLY:
            wait_s = min(wait.total_seconds(), _SLEEP_S_MAX) / self.pace
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
        return not self._stopping.is_set()

    async def _fire(self, last_status: _Status | None, due: datetime, *, past_due: bool) -> _Status:
        started = self.clock()
        known_status = last_status or _Status(_NO_LAST_RUN, self._next(started), started)
        content: dict[str, Any] = {
            "Schedule": {"AdjustForDST": True},
            "ScheduleStatus": known_status.to_json() if self._monitored else None,
            "IsPastDue": past_due,
        }
        datum = Datum(json.dumps(content), "json")
        await self._run_once(datum, f"Timer fired at {started.isoformat()}")
        # After an early wake-up the clock may be before `due`. Then the occurrence after the clock
        # would be `due` again, and would run twice.
        end = max(self.clock(), due)
        status = _Status(started, self._next(end), self.clock())
        self._write(status)
        return status

    async def _run_once(self, datum: Datum, reason: str) -> None:
        try:
            result = await self.invoker.invoke(self.function, datum, {}, reason=reason)
            await self.send_outputs(self.function, result)
        except Exception as error:  # noqa: BLE001  # the invoker logged it; a timer continues
            _log.debug("timer %s continues after %r", self.function.name, error)

    def _read(self) -> _Status | None:
        if self._file is None or not self._file.exists():
            return None
        try:
            content = json.loads(self._file.read_text())
            if content["Schedule"] != self.trigger.text:
                return None  # the schedule changed: the old times no longer apply
            moments = [datetime.fromisoformat(content[key]) for key in _KEYS]
            if any(moment.tzinfo is None for moment in moments):
                raise ValueError("a time has no zone")  # noqa: TRY301  # reported below
            return _Status(*moments)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            text = "%s is not readable (%s): the timer starts without its last status"
            _log.warning(text, self._file, error)
            return None

    def _write(self, status: _Status) -> None:
        if self._file is None:
            return
        new_file = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new_file.write_text(json.dumps({**status.to_json(), "Schedule": self.trigger.text}))
            new_file.replace(self._file)
        except OSError as error:
            _log.warning("%s cannot be written (%s): the timer continues", self._file, error)
