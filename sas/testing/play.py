"""Play one plan: what happened, what was broken, and on request the story."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sas.domain.change import Change
from sas.domain.messages import JournalEntry, JournalWord
from sas.domain.order import Direction, Order, OrderState, StepRecord, StepState, UndoStatus
from sas.domain.workflow import StepRules, Workflow, Workflows
from sas.ports import Call, RefusedError, TransientError
from sas.testing.bus import QueueRules
from sas.testing.clock import START
from sas.testing.invariants import Violation, at_end, in_force, keys_of, skipped
from sas.testing.loop import run
from sas.testing.own_agents import Given, alone
from sas.testing.plan import DAY, HOUR, Away, Plan
from sas.testing.platform import host_rules, queue_rules
from sas.testing.reach import Pair
from sas.testing.stage import Stage, seeded, with_newer
from sas.testing.system import System
from sas.testing.watch import Watch
from sas.testing.wire import SimulatedLoop
from sas.testing.world import HostRules, is_killed

QUIET_S = 12 * HOUR
"""How long orders may take after the last outage, beside the time that their steps are allowed: a
message that was given up may wait for an hour, some times."""
VIOLATIONS_MAX = 20
AT_ONCE_MAX = 2000
"""Most transitions within a second."""
CUT_OFF_MAX = 100
"""Most dispatches in a row without a fault and an answer, beside the timeouts of a step."""
WHOLE = 0.9
"""The share of its time that a call must have had to be called too slow."""


@dataclass(frozen=True, slots=True)
class Project:
    """What is simulated: the workflows of an application, on its own platform.

    With ``given`` its own agents are played, else model services.
    """

    workflows: Workflows
    queues: Mapping[str, QueueRules]
    host: HostRules
    given: Given | None = None
    seconds: Mapping[str, tuple[float, float]] = MappingProxyType({})
    """How long services take, least and most, by the name of a step or of an agent."""

    @classmethod
    def of(
        cls,
        workflows: Workflows,
        directory: Path,
        given: Given | None = None,
        seconds: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    ) -> Project:
        """Return a project by its directory; raises ProjectError."""
        queues = queue_rules(directory, sorted(workflows.agents()))
        return cls(workflows, queues, host_rules(directory), given, seconds)

    @property
    def patience_s(self) -> float:
        """How long the slowest order may take once no fault begins any more, in seconds."""
        return QUIET_S + 4 * max(map(_longest_s, with_newer(self.workflows)))


def _longest_s(workflow: Workflow) -> float:
    """Return the sum of the times that steps, undos and rests are allowed, in seconds."""
    total = workflow.deadline.total_seconds() if workflow.deadline else 0.0
    for rule in workflow.rules.steps:
        tries = rule.failures_max + 1
        allowed = (rule.time_allowed + rule.undo_time).total_seconds()
        total += tries * (allowed + rule.backoff.delay(tries).total_seconds())
        if rule.extended_wait is not None:
            total += rule.extended_wait.times * rule.extended_wait.time.total_seconds()
    return total


@dataclass(slots=True)
class StepTally:
    """What happened to one step over all orders."""

    dispatched: int = 0
    asked_again: int = 0
    """Calls for work that its service had done already: it must keep their key."""
    done: int = 0
    refused: int = 0
    timeouts: int = 0
    calm: int = 0
    """Dispatches whose calls met no fault."""
    cut_off: int = 0
    """Those that the time limit cut off: the agent or its service takes longer."""
    undone: int = 0
    undo_failed: int = 0
    calm_undos: int = 0
    undos_cut_off: int = 0
    processed: int = 0
    """Orders that ended Processed, and in which no operator skipped the step."""
    without_effect: int = 0
    """Those in which it had no effect at a service, and no call for one failed."""
    left_in_force: int = 0
    """Effects in force in an order that was undone: the step has no undo."""
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Played:
    """One plan, played. ``words`` counts transitions by the state of the order after them.

    ``struck`` are the faults that happened, in the order of their first times. ``met`` says how
    many of them had happened before the last transition of a kind. ``undone`` counts the ways in
    which orders of a workflow were undone. ``states`` are those of steps, and of orders (no step).
    """

    plan: Plan
    violations: list[Violation] = field(default_factory=list)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    words: Counter[Pair] = field(default_factory=Counter)
    struck: list[str] = field(default_factory=list)
    met: dict[Pair, int] = field(default_factory=dict)
    undone: Counter[tuple[str, str]] = field(default_factory=Counter)
    states: set[tuple[str, str, str, str]] = field(default_factory=set)
    steps: defaultdict[tuple[str, str], StepTally] = field(
        default_factory=lambda: defaultdict(StepTally)
    )
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    story: list[str] = field(default_factory=list)

    @property
    def orders(self) -> int:
        """How many orders came to an end."""
        return sum(self.ends.values())


def play(project: Project, plan: Plan, *, tell: bool = False) -> Played:
    """Play a plan to its end. ``tell``: write its story. The same plan has the same story."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        game = _Play(project, plan, tell=tell)
        if project.given is None:
            return run(game.run())
        with (
            project.given.environment(),
            alone(plan.seed),
            asyncio.Runner(loop_factory=SimulatedLoop) as runner,
        ):
            return runner.run(game.run())
    finally:
        logging.disable(disabled)


class Stopwatch:
    """Which calls their time limit cuts off, though no fault was at work in them.

    The calls of one dispatch count together: an agent calls again after an error of its own.
    """

    def __init__(self, system: System, endless: Callable[[Violation], None]) -> None:
        """``endless`` hears of an order that waits without end for a service that is too slow."""
        self._system, self._endless = system, endless
        self._waits: dict[tuple[str, str], set[datetime]] = {}
        self._began: dict[tuple[str, datetime, str], datetime] = {}
        self._cut_off: dict[tuple[str, str, str, datetime], bool] = {}
        for agent in system.agents.values():
            for verb in ("do", "undo"):
                setattr(agent, verb, self._timed(verb, getattr(agent, verb)))

    def _timed(self, verb: str, act: Callable[[Call], Awaitable[Any]]) -> Any:
        async def timed(call: Call) -> Any:
            clock, disturbed = self._system.world.clock, self._system.ledger.disturbed
            dispatch = call.key, call.complete_by, verb
            if dispatch not in self._began:
                self._began[dispatch] = clock.now()
                disturbed.discard(call.key)
            began = self._began[dispatch]
            try:
                result = await act(call)
            except (asyncio.CancelledError, TransientError, RefusedError) as end:
                whole = clock.now() - began >= WHOLE * self._allowed(call, verb)
                if is_killed():
                    disturbed.add(call.key)
                elif isinstance(end, RefusedError):
                    self._ended(call, verb, cut_off=False)
                else:
                    if whole:
                        self._ended(call, verb, cut_off=True)
                    self._unanswered(call, verb)
                raise
            except BaseException:
                disturbed.add(call.key)
                raise
            self._ended(call, verb, cut_off=False)
            return result

        return timed

    def _rule(self, call: Call) -> StepRules:
        order = self._system.store.orders[call.order_id].order
        rules = self._system.rules_of(order).steps
        return next(rules[one.number] for one in order.steps if one.name == call.step)

    def _allowed(self, call: Call, verb: str) -> timedelta:
        own = self._rule(call)
        return own.time_allowed if verb == "do" else own.undo_time

    def _ended(self, call: Call, verb: str, *, cut_off: bool) -> None:
        if call.key not in self._system.ledger.disturbed:
            which = call.order_id, call.step, verb, call.complete_by
            self._cut_off.setdefault(which, cut_off)
        if not cut_off:
            self._waits.pop((call.key, verb), None)

    def _unanswered(self, call: Call, verb: str) -> None:
        """Report an order once many dispatches in a row had no answer, though no fault is seen."""
        if call.key in self._system.ledger.disturbed:
            return
        waits = self._waits.setdefault((call.key, verb), set())
        waits.add(call.complete_by)
        if len(waits) != CUT_OFF_MAX + self._rule(call).failures_max:
            return
        workflow, limit = self._system.submitted[call.order_id], self._allowed(call, verb)
        about = (
            f"{workflow}: step {call.step}: its {verb} never ends within its time limit of "
            f"{limit.total_seconds():g} s. To the circuit breaker its service is away, so its "
            "orders wait"
        )
        self._endless(Violation(12, f"order {call.order_id} waits without end: {about}", about))

    def count(self, steps: Mapping[tuple[str, str], StepTally]) -> None:
        """Add what was seen to the tallies of steps."""
        for (order_id, step, verb, _), cut_off in self._cut_off.items():
            tally = steps[self._system.submitted[order_id], step]
            if verb == "do":
                tally.calm += 1
                tally.cut_off += cut_off
            else:
                tally.calm_undos += 1
                tally.undos_cut_off += cut_off


class _Play:
    """A system, and what watches it."""

    def __init__(self, project: Project, plan: Plan, *, tell: bool) -> None:
        self._project, self._plan = project, plan
        self._played = Played(plan)
        self._telling = tell
        self._requested: dict[tuple[str, str, int], datetime] = {}
        self._system: System | None = None
        self._running: asyncio.Future[None] | None = None
        self._moment, self._at_once = START, 0
        self._early = False
        self._no_effect = project.given.no_effect if project.given else frozenset[str]()

    async def run(self) -> Played:
        seeded(self._plan)
        project, played = self._project, self._played
        self._say(f"seed {self._plan.seed}, {self._plan.instances} instances")
        for item in self._plan.items:
            if not hasattr(item, "at_s"):
                self._say(str(item))
        given = project.queues, project.host, self._say, project.given, project.seconds
        system = Stage(self._plan, project.workflows, *given)
        self._system = system
        self._watch(system)
        ends = (one.at_s + one.lasts_s for one in self._plan.items if isinstance(one, Away))
        lasts = max(ends, default=0.0)
        hours_max = (lasts + self._project.patience_s) / HOUR
        self._running = asyncio.ensure_future(system.world.run(system.at_rest, hours_max))
        try:
            await self._running
        except TimeoutError:
            self._say("not everything comes to an end")
        except asyncio.CancelledError:
            if not self._early and self._at_once <= AT_ONCE_MAX:  # Ctrl-C
                raise
            self._say("it goes on without end")
        finally:
            await system.close()
        for violation in () if self._early else (*at_end(system), *self._watching.left_over()):
            self._broken(violation)
        self._tally(system)
        return played

    def _say(self, text: str) -> None:
        if self._telling:
            self._played.story.append(f"{self._time()}  {text}")

    def _time(self) -> str:
        now = self._system.world.clock.now() if self._system else START
        seconds = (now - START).total_seconds()
        days, rest = divmod(seconds, DAY)
        hours, rest = divmod(rest, HOUR)
        minutes, left = divmod(rest, 60)
        ahead = f"{int(days)}d " if days else ""
        return f"{ahead}{int(hours):02}:{int(minutes):02}:{left:06.3f}"

    def _broken(self, violation: Violation) -> None:
        if len(self._played.violations) < VIOLATIONS_MAX:
            self._played.violations.append(violation)
            self._say(f"BROKEN: {violation}")

    # --- what is watched ---

    def _watch(self, system: Stage) -> None:
        system.store.on_written = self._saw
        self._watching = Watch(system, self._broken)
        for ear in system.ears:
            ear.watch = self._watching
        self._stopwatch = Stopwatch(system, self._ends_early)
        if system.own is not None:
            system.own.broken = self._broken
        if not self._telling:
            return

        system.world.tell = self._say
        if system.own is not None:
            system.own.story = self._say
        for name, agent in system.agents.items():
            self._hear(name, agent)

    def _hear(self, name: str, agent: Any) -> None:
        for verb in ("do", "undo"):
            setattr(agent, verb, self._heard(name, verb, getattr(agent, verb)))

    def _heard(self, name: str, verb: str, call_of: Any) -> Any:
        async def heard(call: Call) -> Any:
            what = f"service {name} is asked to {verb} {call.key}"
            self._say(what)
            try:
                result = await call_of(call)
            except Exception as wrong:
                self._say(f"{what}: {type(wrong).__name__}: {wrong}")
                raise
            self._say(f"{what}: {result!r}")
            return result

        return heard

    def _saw(self, change: Change) -> None:
        """Check and count one transition."""
        order, entry = change.after, change.entry
        self._watching.written(change)
        pair = entry.what.value, order.process_state.value
        self._played.words[pair] += 1
        if self._system is not None:
            self._played.met[pair] = len(self._system.world.struck)
        self._check_time(entry.at)
        if self._telling:
            steps = " ".join(f"{one.name}={one.process_state.value}" for one in order.steps)
            sends = ", ".join(type(one).__name__.lower() for one in entry.messages)
            self._say(
                f"order {order.order_id} seq {entry.seq}: {entry.what.value}, by {entry.by}"
                f" [{steps}]" + (f"; sends {sends}" if sends else "")
            )
        workflow = order.details.workflow
        self._played.states.add((workflow, "", pair[1], ""))
        before = change.before.steps if change.before else (None,) * len(order.steps)
        for old, new in zip(before, order.steps, strict=False):
            if old is new:
                continue
            state = new.process_state.value, new.undo.status.value
            self._played.states.add((workflow, new.name, *state))
            if old is not None:
                tally = self._played.steps[workflow, new.name]
                self._saw_step(order, old, new, tally, entry.at)

    def _check_time(self, at: datetime) -> None:
        """End a simulation whose transitions never stop while its time stands still."""
        self._at_once = self._at_once + 1 if at - self._moment < timedelta(seconds=1) else 0
        if not self._at_once:
            self._moment = at
        if self._at_once > AT_ONCE_MAX and self._running is not None:
            self._running.cancel()

    def _ends_early(self, why: Violation) -> None:
        """End a simulation in which an order waits without end."""
        self._early = True
        self._broken(why)
        if self._running is not None:
            self._running.cancel()

    def _saw_step(
        self, order: Order, old: StepRecord, new: StepRecord, tally: StepTally, at: datetime
    ) -> None:
        key = (order.order_id, new.name, 0)
        if new.epoch > old.epoch:
            tally.dispatched += 1
            self._requested.setdefault(key, at)
        if (
            new.process_state is StepState.PROCESSED
            and old.process_state is not StepState.PROCESSED
        ):
            tally.done += 1
            if key in self._requested:
                tally.seconds.append((at - self._requested.pop(key)).total_seconds())
        if new.failure_count > old.failure_count:
            tally.timeouts += 1
        if new.error is not None and old.error is None and new.failure_count == old.failure_count:
            tally.refused += 1
        if new.process_state is StepState.COMPENSATED and old.epoch and old != new:
            tally.undone += old.process_state is StepState.COMPENSATING
        tally.undo_failed += new.undo_failed and not old.undo_failed

    def _tally(self, system: System) -> None:
        self._played.struck = [one.replace("_", " ") for one in system.world.struck]
        for (order_id, name), times in self._watching.asked_again.items():
            workflow = system.submitted[order_id]
            self._played.steps[workflow, name].asked_again += times
        for order_id in system.submitted:
            stored = system.store.orders.get(order_id)
            if stored is None:
                continue
            order = stored.order
            workflow = order.details.workflow
            self._played.ends[workflow, order.process_state.value] += 1
            if order.direction is Direction.UNDO and order.settled_at is not None:
                self._played.undone[workflow, _way_back(order, stored.journal)] += 1
            if order.settled_at is not None:
                took = order.settled_at - order.details.submitted_at
                self._played.seconds[workflow].append(took.total_seconds())
            for step in order.steps:
                tally = self._played.steps[workflow, step.name]
                found = in_force(system, order, step) > 0
                if order.process_state is OrderState.COMPENSATED:
                    tally.left_in_force += found and step.undo.status is UndoStatus.NOT_NEEDED
                if order.process_state is not OrderState.PROCESSED:
                    continue
                if not (skipped(step, stored.journal) or step.name in self._no_effect):
                    owed = system.owes_effect(step.name, keys_of(system, order, step))
                    tally.processed += 1
                    tally.without_effect += not (found or owed)
        self._stopwatch.count(self._played.steps)


def _way_back(order: Order, journal: Sequence[JournalEntry]) -> str:
    """Return the steps of an order in the order in which they were undone, and how."""
    skipped, way = set(), []
    for entry in journal:
        for one in entry.changes:
            step = order.steps[one.step]
            if entry.what is JournalWord.SKIPPED and one.after is StepState.PROCESSED:
                skipped.add(one.step)
            if one.after is not StepState.COMPENSATED or step.undo.status is UndoStatus.NOT_NEEDED:
                continue
            marks = ["skipped"] * (one.step in skipped)
            marks += ["by hand"] * (step.undo.status is UndoStatus.BY_HAND)
            way.append(step.name + (f" ({', '.join(marks)})" if marks else ""))
    way += [f"{one.name} (undo failed)" for one in order.steps if one.undo_failed]
    return ", ".join(way) or "nothing to undo"
