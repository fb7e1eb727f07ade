"""The totals of many simulations, for people at the terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields

from sas.domain.messages import JournalWord
from sas.domain.order import OrderState
from sas.domain.workflow import Step, Workflows
from sas.testing.play import Played, StepTally
from sas.testing.violation import Violation


@dataclass(slots=True, kw_only=True)
class Tally:
    """The totals of all simulations of some workflows so far."""

    workflows: Workflows
    seeds: int = 0
    orders: int = 0
    broken: list[tuple[int, list[Violation]]] = field(default_factory=list)
    own_faults: dict[str, int] = field(default_factory=dict)
    """The first seed that shows each mistake of a step of the adopter."""
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    steps: defaultdict[tuple[str, str], StepTally] = field(
        default_factory=lambda: defaultdict(StepTally)
    )

    def add(self, played: Played) -> None:
        """Count one simulation."""
        seed = played.plan.seed
        self.seeds += 1
        self.orders += played.orders
        if played.violations:
            self.broken.append((seed, played.violations))
        for about in {violation.about for violation in played.violations if violation.about}:
            self.own_faults[about] = min(seed, self.own_faults.get(about, seed))
        self.ends.update(played.ends)
        self.words.update(played.words)
        for key, tally in played.steps.items():
            total = self.steps[key]
            for count in fields(StepTally):
                setattr(total, count.name, getattr(total, count.name) + getattr(tally, count.name))

    def own_faults_told(self, command_of: Callable[[int], str]) -> list[str]:
        """Return each mistake of a step, with the command that shows it."""
        faults = sorted(self.own_faults.items())
        return [f"{about}: seed {seed}, {command_of(seed)}" for about, seed in faults]

    def never_reached(self) -> list[str]:
        """Return the kinds of transition that no simulation led to."""
        return sorted({word.value for word in JournalWord} - set(self.words))

    def never_processed(self) -> dict[str, int]:
        """Return how many orders ended, for each workflow without a Processed order."""
        orders = Counter[str]()
        for (name, _), count in self.ends.items():
            orders[name] += count
        done = {name for name, state in self.ends if state == OrderState.PROCESSED.value}
        return {name: orders[name] for name in sorted(orders) if name not in done}

    def advice(self) -> Iterator[str]:
        """Yield what an adopter should know of their own workflows."""
        for name, orders in self.never_processed().items():
            yield f"{name}: none of its {orders} orders ended Processed."
        for name in dict.fromkeys(workflow.name for workflow in self.workflows):
            for step in self.workflows.find(name).steps:
                yield from _of_step(name, step, self.steps[name, step.name])


def _of_step(workflow: str, step: Step, tally: StepTally) -> Iterator[str]:
    place = f"{workflow}: step {step.name}"
    if tally.left_in_force:
        yield (
            f"{place} has no undo: its effect stayed in {tally.left_in_force} orders that were "
            "undone. Give it an undo, or put it last."
        )
    if tally.without_effect:
        yield (
            f"{place} had no effect at any service in {tally.without_effect} of {tally.processed} "
            "processed orders. If it should have one, its agent does not call its service."
        )
