"""What many simulations showed together: for people on the terminal, and for the report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from sas.domain.messages import JournalWord
from sas.domain.workflow import Step, Workflows
from sas.sim.invariants import Violation
from sas.sim.play import Played, StepTally

NEVER = {JournalWord.UNKNOWN.value, JournalWord.REJECTED.value}
"""Words that no simulation of one version can lead to, or that no stored transition has."""
SHORT_SHARE = 0.2
"""Above this share of timeouts of a service that had done the work, more time is advised."""


@dataclass(slots=True)
class Tally:
    """All simulations so far."""

    seeds: int = 0
    orders: int = 0
    broken: list[tuple[int, list[Violation]]] = field(default_factory=list)
    own_faults: dict[str, int] = field(default_factory=dict)
    """What a step of the adopter does wrong, and the first seed that shows it."""
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    words: Counter[tuple[str, str]] = field(default_factory=Counter)
    met: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Transitions by their word, the state of the order after them, and a fault of the seed."""
    steps: defaultdict[tuple[str, str], StepTally] = field(
        default_factory=lambda: defaultdict(StepTally)
    )
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, played: Played) -> None:
        """Count one simulation."""
        self.seeds += 1
        self.orders += played.orders
        if played.violations:
            self.broken.append((played.plan.seed, played.violations))
        for about in {one.about for one in played.violations if one.about}:
            seed = played.plan.seed
            self.own_faults[about] = min(seed, self.own_faults.get(about, seed))
        self.ends.update(played.ends)
        self.words.update(played.words)
        for fault in played.plan.faults:
            for (word, state), times in played.words.items():
                self.met[word, state, fault] += times
        for key, tally in played.steps.items():
            own = self.steps[key]
            for one in fields(StepTally):
                setattr(own, one.name, getattr(own, one.name) + getattr(tally, one.name))
        for name, seconds in played.seconds.items():
            self.seconds[name] += seconds

    def never_reached(self) -> list[str]:
        """Return the kinds of transition that no simulation led to."""
        reached = {word for word, _ in self.words}
        every = {word.value for word in JournalWord} - NEVER
        return sorted(every - reached)

    def coverage(self) -> str:
        """Return how much of event x state x fault the simulations reached, in a sentence."""
        faults = {fault for _, _, fault in self.met}
        every, reached = len(self.words) * len(faults), len(self.met)
        return (
            f"{len({word for word, _ in self.words})} kinds of transition in "
            f"{len(self.words)} pairs with a state; with {len(faults)} faults, "
            f"{reached} of {every} triples were reached"
        )

    def not_met(self) -> dict[tuple[str, str], list[str]]:
        """Return the faults that a transition into a state never met, by transition and state."""
        faults = sorted({fault for _, _, fault in self.met})
        found = {
            (word, state): [one for one in faults if not self.met[word, state, one]]
            for word, state in sorted(self.words)
        }
        return {pair: missing for pair, missing in found.items() if missing}

    def advice(self, workflows: Workflows) -> Iterator[str]:
        """Yield what an adopter should know of the own workflows."""
        for workflow in workflows:
            for step in workflow.steps:
                yield from _of_step(workflow.name, step, self.steps[workflow.name, step.name])


def _of_step(workflow: str, step: Step, tally: StepTally) -> Iterator[str]:
    where = f"{workflow}: step {step.name}"
    if tally.left_in_force:
        yield (
            f"{where} has no undo: its effect stayed in {tally.left_in_force} orders that were "
            "undone. Give it an undo, or put it last."
        )
    if tally.timeouts > 20 and tally.timeouts_answered > SHORT_SHARE * tally.timeouts:
        seconds = step.time_allowed.total_seconds()
        yield (
            f"{where}: {tally.timeouts_answered} of {tally.timeouts} timeouts came although its "
            f"service had done the work. Its {seconds:g} s are short for a service that answers "
            "late."
        )
    if tally.undo_failed > 0.2 * max(tally.undone, 1):
        yield (
            f"{where}: {tally.undo_failed} undos failed and waited for an operator "
            f"({tally.undone} succeeded)."
        )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies; 0 without values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0
