"""Timers, on a clock of the test's own where a minute matters."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from devstack.functions.bindings import TimerTrigger
from devstack.functions.indexing import IndexedFunction, bind, find, imported
from devstack.functions.invocation import Invoker
from devstack.functions.settings import Settings
from devstack.functions.timers import Timer

START = datetime(2026, 3, 14, 12, 0, 30, tzinfo=UTC)
NEVER = datetime.max.replace(tzinfo=UTC)


class Clock:
    """Time that runs `rate` times as fast, from START, and stands still at `end`."""

    def __init__(self, rate: float, start: datetime = START, end: datetime = NEVER) -> None:
        self.rate, self._start, self._end = rate, start, end
        self._began = asyncio.get_running_loop().time()

    def __call__(self) -> datetime:
        elapsed_s = asyncio.get_running_loop().time() - self._began
        return min(self._start + timedelta(seconds=elapsed_s * self.rate), self._end)


def function_of(app_dir: Path, code: str, schedule: str, **options: Any) -> IndexedFunction:
    arguments = "".join(f", {name}={value!r}" for name, value in options.items())
    (app_dir / "function_app.py").write_text(
        "import asyncio, azure.functions as func\napp = func.FunctionApp()\nseen = []\n"
        f"@app.timer_trigger(arg_name='t', schedule={schedule!r}{arguments})\n{code}"
    )
    with imported(app_dir) as module:
        [function] = find(module)
        return bind(function, app_dir, Settings({}))


async def run(
    function: IndexedFunction, clock: Clock, *, until: int, status_dir: Path | None = None
) -> list[Any]:
    """Run the timer until the function has made `until` notes; return the notes."""
    invoker = Invoker(Settings({}), timeout_s=None)

    async def finish(*_: Any) -> None: ...

    assert isinstance(function.trigger, TimerTrigger)
    timer = Timer(
        function=function,
        trigger=function.trigger,
        invoker=invoker,
        send_outputs=finish,
        status_dir=status_dir,
        clock=clock,
        pace=clock.rate,
    )
    notes: list[Any] = function.code.__globals__["seen"]
    task = asyncio.create_task(timer.run())
    try:
        async with asyncio.timeout(120):
            while len(notes) < until:  # noqa: ASYNC110  # the function notes, nothing signals
                await asyncio.sleep(0.005)
    finally:
        timer.stop()
        await task
        invoker.close()
    return notes


NOTE = "async def f(t: func.TimerRequest):\n    seen.append([t.past_due, t.schedule_status])\n"


async def test_a_timer_fires_at_each_occurrence_and_not_before(tmp_path: Path) -> None:
    code = "async def f(t: func.TimerRequest):\n    seen.append(clock())\n"
    function = function_of(tmp_path, code, "*/10 * * * * *")
    clock = function.code.__globals__["clock"] = Clock(100)
    times = await run(function, clock, until=3)
    occurrences = [
        (at - START + timedelta(milliseconds=1)) // timedelta(seconds=10) for at in times
    ]
    assert occurrences[0] >= 1  # a busy machine may be late for some of them
    assert occurrences == sorted(set(occurrences))


async def test_an_exception_never_stops_the_schedule(tmp_path: Path) -> None:
    code = "def f(t: func.TimerRequest):\n    seen.append(1)\n    raise ValueError('as asked')\n"
    assert len(await run(function_of(tmp_path, code, "* * * * * *"), Clock(50), until=3)) >= 3


async def test_runs_never_overlap_and_missed_ones_are_not_made_up_for(tmp_path: Path) -> None:
    code = (
        "async def f(t: func.TimerRequest):\n    seen.append('begin')\n"
        "    await asyncio.sleep(0.1)\n    seen.append('end')\n"
    )
    notes = await run(function_of(tmp_path, code, "* * * * * *"), Clock(50), until=6)
    assert notes[:6] == ["begin", "end"] * 3


async def test_run_on_startup_runs_at_once(tmp_path: Path) -> None:
    function = function_of(tmp_path, NOTE, "0 0 0 1 1 *", run_on_startup=True)
    [[past_due, status]] = await run(function, Clock(1), until=1)
    assert past_due is False
    assert status["Next"] == "2027-01-01T00:00:00+00:00"


async def test_what_was_missed_while_the_host_was_away_is_run_once(tmp_path: Path) -> None:
    function = function_of(tmp_path, NOTE, "0 */5 * * * *")
    clock = Clock(1000, end=START + timedelta(minutes=5))
    await run(function, clock, until=1, status_dir=tmp_path)
    written = json.loads((tmp_path / "timer-f.json").read_text())
    assert written["Next"] == "2026-03-14T12:10:00+00:00"
    function.code.__globals__["seen"].clear()
    much_later = Clock(1, START + timedelta(hours=3))
    [[past_due, status]] = await run(function, much_later, until=1, status_dir=tmp_path)
    assert past_due is True
    assert status["Next"] == "2026-03-14T12:10:00+00:00"
    assert json.loads((tmp_path / "timer-f.json").read_text())["Next"] > "2026-03-14T15:"


async def test_a_restart_before_the_next_occurrence_waits_for_it(tmp_path: Path) -> None:
    function = function_of(tmp_path, NOTE, "0 */5 * * * *")
    once = Clock(1000, end=START + timedelta(minutes=5))
    await run(function, once, until=1, status_dir=tmp_path)
    function.code.__globals__["seen"].clear()
    soon = Clock(1, START + timedelta(minutes=5))
    waiting = asyncio.create_task(run(function, soon, until=1, status_dir=tmp_path))
    await asyncio.sleep(0.3)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert function.code.__globals__["seen"] == []


NAIVE = '{"Schedule": "0 */5 * * * *", "Last": "%s", "Next": "%s", "LastUpdated": "%s"}'
NAIVE %= ("2026-01-01T00:00:00",) * 3


async def test_an_unreadable_status_is_no_reason_to_fail(tmp_path: Path) -> None:
    for content in ("", "{}", '{"Schedule": "0 */5 * * * *", "Last": 3}', "[" * 100_000, NAIVE):
        (tmp_path / "timer-f.json").write_text(content)
        function = function_of(tmp_path, NOTE, "0 */5 * * * *", run_on_startup=True)
        [[past_due, _]] = await run(function, Clock(1), until=1, status_dir=tmp_path)
        assert past_due is False


async def test_a_status_that_cannot_be_written_never_stops_the_schedule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "status").write_text("a file where a directory should be")
    function = function_of(tmp_path, NOTE, "0 */5 * * * *", run_on_startup=True)
    notes = await run(function, Clock(1000), until=3, status_dir=tmp_path / "status")
    assert len(notes) >= 3
    assert "cannot be written" in caplog.text


async def test_without_the_monitor_nothing_is_written(tmp_path: Path) -> None:
    function = function_of(tmp_path, NOTE, "0 */5 * * * *", use_monitor=False, run_on_startup=True)
    [[_, status]] = await run(function, Clock(1), until=1, status_dir=tmp_path)
    assert not (tmp_path / "timer-f.json").exists()
    assert not status


def test_an_interval_is_taken_as_a_schedule_too(tmp_path: Path) -> None:
    trigger = function_of(tmp_path, NOTE, "00:05:00").trigger
    assert isinstance(trigger, TimerTrigger)
    assert trigger.schedule == timedelta(minutes=5)
