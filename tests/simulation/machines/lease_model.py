"""The reference model of ``test_leases``: what the pattern's text says of one order's steps.

A step is claimed, answered, reset, given up, and undone. The model knows no store, no queue and no
journal. Numbers of steps and times in seconds are all that it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sas.domain.workflow import OnFailure, Workflow

ALLOWED_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the record of a step must say. ``until``: when it is due, if it is out or rests."""

    state: str
    epoch: int
    failures: int
    waits: int
    locked_by: str | None
    until: float | None
    cancelled: bool


@dataclass(kw_only=True)
class StepModel:
    """One step. ``out_until``: a request is out; ``rests_until``: nobody may claim it."""

    state: str = "Pending"
    epoch: int = 0
    failures: int = 0
    waits: int = 0
    locked_by: str | None = None
    out_until: float | None = None
    rests_until: float | None = None
    cancelled: bool = False
    undo_failed: bool = False

    def ends(self, state: str, *, failures: int | None = None) -> None:
        self.state, self.locked_by, self.out_until, self.rests_until = state, None, None, None
        self.failures = self.failures if failures is None else failures

    def begins_undo(self, *, has_undo: bool) -> None:
        self.waits, self.cancelled = 0, False
        self.ends("Compensating" if self.epoch and has_undo else "Compensated", failures=0)


@dataclass(kw_only=True)
class LeaseModel:
    """One order: its steps, the dispatches that were ever made, and what was said of failures.

    ``unsure``: so many failures may have been, in two races that end alike.
    """

    workflow: Workflow
    steps: list[StepModel] = field(default_factory=list)
    dispatches: set[tuple[int, str, int]] = field(default_factory=set)
    causes: set[str] = field(default_factory=set)
    notices: int = 0
    alerted: int = 0
    unsure: int = 0

    def __post_init__(self) -> None:
        self.steps = [StepModel() for _ in self.workflow.steps]

    def records(self) -> list[Record]:
        return [
            Record(
                state=step.state,
                epoch=step.epoch,
                failures=step.failures,
                waits=step.waits,
                locked_by=step.locked_by,
                until=step.out_until if step.out_until is not None else step.rests_until,
                cancelled=step.cancelled,
            )
            for step in self.steps
        ]

    @property
    def undoing(self) -> bool:
        states = {"Compensating", "Compensated"}
        return any(s.state in states or s.cancelled or s.undo_failed for s in self.steps)

    def is_ready(self, number: int) -> bool:
        step, rules = self.steps[number], self.workflow.rules
        if step.out_until is not None or step.rests_until is not None:
            return False
        if step.state == "Pending":
            before = [self.steps[other].state for other in rules.steps[number].after]
            failed = any(other.state == "Error" for other in self.steps)
            return set(before) <= {"Processed"} and not failed
        later = [self.steps[other].state for other in rules.dependents(number)]
        return step.state == "Compensating" and set(later) <= {"Compensated"}

    def claim(self, now: float, instance: str) -> bool:
        """Let an instance claim every ready step; return whether one was."""
        ready = [number for number in range(len(self.steps)) if self.is_ready(number)]
        for number in ready:
            step = self.steps[number]
            direction = "do" if step.state == "Pending" else "undo"
            step.state = "Processing" if direction == "do" else step.state
            step.epoch += 1
            step.locked_by, step.out_until = instance, now + ALLOWED_S
            self.dispatches.add((number, direction, step.epoch))
        return bool(ready)

    def wake(self, now: float, instance: str, wake_id: str, *, is_first: bool) -> None:
        """A wake acts once. One that found nothing acts later, unless it was delivered again."""
        if self.is_over() or wake_id in self.causes:
            return
        if self.claim(now, instance) or not is_first:
            self.causes.add(wake_id)

    def reply(
        self, now: float, instance: str, dispatch: tuple[int, str, int], outcome: str
    ) -> None:
        """A reply counts only for the dispatch that is out."""
        number, direction, epoch = dispatch
        step = self.steps[number]
        is_do = step.state == "Processing"
        if step.out_until is None or (step.epoch, is_do) != (epoch, direction == "do"):
            return
        if step.cancelled:
            self._undo(number)
            self.claim(now, instance)
        elif outcome == "waited":
            rests_until = step.out_until
            step.ends("Pending" if is_do else "Compensating")
            step.rests_until = rests_until
        elif outcome == "done":
            step.waits = 0
            step.ends("Processed" if is_do else "Compensated", failures=0)
            self.claim(now, instance)
        elif self._fails(number) and is_do:
            self.claim(now, instance)

    def sweep(self, now: float) -> None:
        """The supervisor acts on every step whose CompleteBy has passed."""
        for number in range(len(self.steps)):
            self.expire(now, number)

    def expire(self, now: float, number: int) -> None:
        step = self.steps[number]
        if step.rests_until is not None and step.rests_until <= now:
            step.rests_until = None
        elif step.out_until is not None and step.out_until <= now:
            self._times_out(number, now)

    def _times_out(self, number: int, now: float) -> None:
        step, rule = self.steps[number], self.workflow.rules.steps[number]
        if step.cancelled:
            self._undo(number)
            return
        step.failures += 1
        again = "Pending" if step.state == "Processing" else "Compensating"
        if step.failures <= rule.failures_max:
            rest = rule.backoff.delay(step.failures).total_seconds()
            step.ends(again)
            step.rests_until = now + rest if rest else None
        elif rule.extended_wait is not None and step.waits < rule.extended_wait.times:
            step.waits += 1
            step.ends(again)
            step.rests_until = now + rule.extended_wait.time.total_seconds()
        else:
            self._fails(number)

    def _fails(self, number: int) -> bool:
        """Let a step fail; return whether its order is undone."""
        step = self.steps[number]
        step.undo_failed = step.state == "Compensating"
        step.ends("Error")
        self.notices += 1
        undoes = not step.undo_failed and self.workflow.on_failure is OnFailure.UNDO
        if undoes:
            self._undo(*range(len(self.steps)))
        self.alerted += not undoes
        return undoes

    def _undo(self, *numbers: int) -> None:
        for number in numbers:
            rule = self.workflow.rules.steps[number]
            self.steps[number].begins_undo(has_undo=rule.undo_time_allowed is not None)

    def command(self, verb: str) -> None:
        """An operator's command, for the order as it is now."""
        failed = [step for step in self.steps if step.state == "Error"]
        is_out = any(step.state == "Processing" for step in self.steps)
        if verb == "undo" and self.undoing and is_out:
            self._undo(*(n for n, step in enumerate(self.steps) if step.state == "Processing"))
        elif verb == "undo" and not self.undoing:
            self._undo(*range(len(self.steps)))
        elif verb == "cancel" and not self.undoing and not self.is_over():
            for number, step in enumerate(self.steps):
                step.cancelled = step.state == "Processing"
                if not step.cancelled:
                    self._undo(number)
        for step in failed if verb in {"resubmit", "skip"} else []:
            done = "Compensated" if step.undo_failed else "Processed"
            again = "Compensating" if step.undo_failed else "Pending"
            step.waits, step.undo_failed = 0, False
            step.ends(done if verb == "skip" else again, failures=0)

    def is_over(self) -> bool:
        return {step.state for step in self.steps} in ({"Processed"}, {"Compensated"})
