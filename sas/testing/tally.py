"""What many simulations showed together: for people on the terminal, and for the report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields

from sas.domain.order import OrderState
from sas.domain.workflow import Step, Workflow, Workflows
from sas.testing import reach
from sas.testing.invariants import Violation
from sas.testing.plan import CONDITIONS
from sas.testing.play import Played, StepTally
from sas.testing.reach import Pair


@dataclass(slots=True)
class Tally:
    """All simulations of some workflows so far."""

    workflows: Workflows
    seeds: int = 0
    orders: int = 0
    interrupted: bool = False
    broken: list[tuple[int, list[Violation]]] = field(default_factory=list)
    own_faults: dict[str, int] = field(default_factory=dict)
    """What a step of the adopter does wrong, and the first seed that shows it."""
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    words: Counter[Pair] = field(default_factory=Counter)
    met: defaultdict[Pair, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The conditions that had happened in a simulation before a transition."""
    undone: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The ways in which orders of a workflow were undone."""
    states: set[tuple[str, str, str, str]] = field(default_factory=set)
    """Workflow, step, ProcessState and status of the undo; no step means the order as a whole."""
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
        for pair, count in played.met.items():
            self.met[pair].update(played.struck[:count])
        self.undone.update(played.undone)
        self.states |= played.states
        for key, tally in played.steps.items():
            own = self.steps[key]
            for one in fields(StepTally):
                setattr(own, one.name, getattr(own, one.name) + getattr(tally, one.name))
        for name, seconds in played.seconds.items():
            self.seconds[name] += seconds

    def own_faults_told(self, again: Callable[[int], str]) -> list[str]:
        """Return what each step does wrong, with the command that shows it."""
        found = sorted(self.own_faults.items())
        return [f"{about}: seed {seed}, {again(seed)}" for about, seed in found]

    def newest(self) -> list[Workflow]:
        """Return the version of each workflow that new orders get."""
        return [self.workflows.find(name) for name in dict.fromkeys(w.name for w in self.workflows)]

    def pairs(self) -> set[Pair]:
        """Return the kinds of transition that the workflows can have, and the states after them."""
        return {*self.words}.union(*map(reach.pairs, self.newest()))

    def never_reached(self) -> list[str]:
        """Return the kinds of transition that no simulation led to."""
        return sorted({word for word, _ in self.pairs()} - {word for word, _ in self.words})

    def pairs_never_reached(self) -> list[str]:
        """Return the transitions of a kind that was reached, into a state that was not."""
        reached = {word for word, _ in self.words}
        missing = sorted(self.pairs() - {*self.words})
        return [f"{word}, {state}" for word, state in missing if word in reached]

    def states_never_reached(self) -> list[str]:
        """Return the states of steps and orders that no simulation led to."""
        orders = [
            f"{one.name}: order {state}"
            for one in self.newest()
            for state in reach.order_states(one)
            if (one.name, "", state, "") not in self.states
        ]
        steps = [
            f"{one.name}: step {step} {state}" + ("" if undo == "-" else f", {undo}")
            for one in self.newest()
            for step, state, undo in reach.step_states(one)
            if (one.name, step, state, undo) not in self.states
        ]
        return orders + steps

    def coverage(self) -> str:
        """Return how much of event x state x condition the simulations reached, in a sentence."""
        pairs = self.pairs()
        words = {word for word, _ in pairs}
        met = {one for conditions in self.met.values() for one in conditions}
        triples = sum(map(len, self.met.values()))
        return (
            f"{len(words) - len(self.never_reached())} of {len(words)} kinds of transition; "
            f"{len(self.words)} of {len(pairs)} pairs with a state; "
            f"{len(met)} of {len(CONDITIONS)} conditions; "
            f"{triples:,} of {len(pairs) * len(CONDITIONS):,} triples"
        )

    def not_met(self) -> dict[Pair, list[str]]:
        """Return the conditions that a transition into a state never met."""
        found = {
            pair: [one for one in CONDITIONS if one not in self.met[pair]]
            for pair in sorted(self.words)
        }
        return {pair: missing for pair, missing in found.items() if missing}

    def undo_paths(self) -> dict[str, list[tuple[str, int]]]:
        """Return how orders of each workflow were undone, and how often: the most often first."""
        found: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for (name, way), count in sorted(self.undone.items(), key=lambda one: (-one[1], one[0])):
            found[name].append((way, count))
        return {name: found[name] for name in sorted(found)}

    def never_processed(self) -> dict[str, int]:
        """Return the workflows of which no order ended Processed, and their orders."""
        orders = Counter[str]()
        for (name, _), count in self.ends.items():
            orders[name] += count
        done = {name for name, state in self.ends if state == OrderState.PROCESSED.value}
        return {name: orders[name] for name in sorted(orders) if name not in done}

    def advice(self) -> Iterator[str]:
        """Yield what an adopter should know of the own workflows."""
        for name, orders in self.never_processed().items():
            yield f"{name}: none of its {orders} orders ended Processed."
        for workflow in self.newest():
            for step in workflow.steps:
                yield from _of_step(workflow.name, step, self.steps[workflow.name, step.name])


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
