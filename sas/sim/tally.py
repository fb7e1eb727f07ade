"""What many simulations showed together: for people on the terminal, and for the report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from sas.domain.messages import JournalWord
from sas.domain.order import OrderState
from sas.domain.workflow import Step, Workflows
from sas.sim.invariants import Violation
from sas.sim.play import Played, StepTally

NEVER = {JournalWord.UNKNOWN.value, JournalWord.REJECTED.value}
"""Words that no simulation of one version can lead to, or that no stored transition has."""


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
        for name in sorted({workflow.name for workflow in workflows}):
            ends = {state: count for (own, state), count in self.ends.items() if own == name}
            orders = sum(ends.values())
            if orders and not ends.get(OrderState.PROCESSED.value):
                yield f"{name}: none of its {orders} orders ended Processed."
            for step in workflows.find(name).steps:
                yield from _of_step(name, step, self.steps[name, step.name])


def _of_step(workflow: str, step: Step, tally: StepTally) -> Iterator[str]:
    where = f"{workflow}: step {step.name}"
    if tally.left_in_force:
        yield (
            f"{where} has no undo: its effect stayed in {tally.left_in_force} orders that were "
            "undone. Give it an undo, or put it last."
        )
    if tally.without_effect:
        yield (
            f"{where} had no effect at any service in {tally.without_effect} of {tally.processed} "
            "processed orders. If it should have one, its agent does not call its service. If not, "
            'name it in "no_effect" of sim.json.'
        )
    undo_time = step.undo.time_allowed if step.undo else step.time_allowed
    for what, cut_off, calm, time in (
        ("calls", tally.cut_off, tally.calm, step.time_allowed),
        ("undos", tally.undos_cut_off, tally.calm_undos, undo_time),
    ):
        if cut_off:
            yield (
                f"{where}: its time limit of {time.total_seconds():g} s cut off {cut_off} of "
                f"{calm} {what} in which no fault was at work: its agent or service takes longer. "
                "Allow more time."
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
