"""The report of a run as text."""

from __future__ import annotations

import statistics
from collections import Counter

from lab.chaos.reconciliation import Reconciliation
from lab.chaos.run import Run
from sas.domain.messages import JournalWord


def lines(run: Run, result: Reconciliation, seed: int) -> list[str]:
    """Return the report, a line each."""
    seconds = max([*run.ended_at, run.begun + 1]) - run.begun
    states = ", ".join(f"{count} {state}" for state, count in sorted(result.states.items()))
    report = [
        f"seed {seed}: {len(run.submitted)} orders, {len(run.happened)} faults, {seconds:.0f} s",
        f"{len(run.ended_at) / seconds:.1f} orders ended a second",
        f"in the store: {states or 'nothing'}",
        f"{result.notified} notifications, {result.calls} calls, {result.effects} effects in force",
        f"clocks of hosts at the end, in seconds: {run.system.clocks}",
        "",
        "what must be zero:",
        *(f"  {len(entries):5}  {title}" for title, entries in result.problems.items()),
        "",
        "what queues may do (at least once):",
        f"  {run.redelivered:5}  messages delivered again after a lost lock or connection",
        f"  {len(run.notified_after_window):5}  again after the duplicate detection window",
        "",
        "faults, and seconds from the end of each until the next order ended:",
        *_resumed(run),
        "",
        "transitions other than the happy path:",
        *(f"  {count:5}  {word}" for word, count in _unusual(result.transitions)),
    ]
    if run.gave_up:
        report.append(f"GIVEN UP: nothing moved for {run.quiet_s_max:.0f} s")
    for title, entries in result.problems.items():
        report += [f"{title}: {entry}" for entry in entries]
    return report


def _resumed(run: Run) -> list[str]:
    times_of, kinds = run.resumed_s(), run.kinds()
    return [
        f"  {kinds[kind]:5}  {kind:36}"
        f" median {statistics.median(times):5.1f}  max {max(times):5.1f}"
        for kind, times in sorted(times_of.items())
    ]


def _unusual(transitions: Counter[str]) -> list[tuple[str, int]]:
    usual = {JournalWord.SUBMITTED, JournalWord.CLAIMED, JournalWord.STEP_PROCESSED}
    return [(word, count) for word, count in transitions.most_common() if word not in usual]
