"""Play one plan, and report what happened, what was broken, and on request the story."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sas.domain.change import Change
from sas.domain.messages import JournalWord
from sas.domain.order import Direction
from sas.domain.workflow import Workflow
from sas.ports import AgentCall
from sas.testing.clock import START
from sas.testing.invariants import Invariants, at_end
from sas.testing.own_agents import isolated
from sas.testing.plan import DAY, HOUR, Away, Plan
from sas.testing.system import Project, System, with_newer
from sas.testing.violation import Violation
from sas.testing.wire import SimulatedLoop

__all__ = ["Played", "Project", "play"]

QUIET_S = 12 * HOUR
"""How long orders may take after the last outage, in addition to the time that their steps are
allowed. It is long because a message that was given up may wait for an hour, more than once."""
VIOLATIONS_MAX = 20
TRANSITIONS_A_SECOND_MAX = 2000
"""Most transitions within one second of virtual time."""


@dataclass(slots=True, kw_only=True)
class Played:
    """The result of one plan.

    ``ends`` counts the orders by workflow and state, ``words`` counts the transitions by the
    journal's word. ``error`` is what a function raised that it must not raise. It ended the story.
    ``system`` is kept for a script alone.
    """

    plan: Plan
    violations: list[Violation] = field(default_factory=list)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)
    error: Exception | None = None
    system: System | None = field(default=None, repr=False)

    @property
    def orders(self) -> int:
        """How many orders came to an end."""
        return sum(self.ends.values())


def play(project: Project, plan: Plan, *, tell: bool = False) -> Played:
    """Play a plan to its end. With ``tell``, write its story. The same plan has the same story."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        game = _Play(project, plan, tell=tell)
        if project.script is None:
            return asyncio.run(game.run())
        with (
            project.script.environment(),
            isolated(plan.seed),
            asyncio.Runner(loop_factory=SimulatedLoop) as runner,
        ):
            return runner.run(game.run())
    finally:
        logging.disable(disabled)


def patience_s(project: Project) -> float:
    """Return how long the slowest order may take once no fault begins any more, in seconds."""
    return QUIET_S + 4 * max(map(_longest_s, with_newer(project.workflows)))


def _longest_s(workflow: Workflow) -> float:
    """Return the sum of the times that steps, undos and extended waits may take, in seconds."""
    total = workflow.deadline.total_seconds() if workflow.deadline else 0.0
    for rule in workflow.rules.steps:
        tries = rule.failures_max + 1
        allowed = (rule.time_allowed + rule.undo_time).total_seconds()
        total += tries * (allowed + rule.backoff.delay(tries).total_seconds())
        if rule.extended_wait is not None:
            total += rule.extended_wait.times * rule.extended_wait.time.total_seconds()
    return total


class _Play:
    """One play: a system, its invariants, and the result so far."""

    def __init__(self, project: Project, plan: Plan, *, tell: bool) -> None:
        self._project, self._plan = project, plan
        self._played = Played(plan=plan)
        self._telling = tell
        self._system: System | None = None
        self._running: asyncio.Future[None] | None = None
        self._moment, self._transitions_now = START, 0
        self._has_failed = False

    async def run(self) -> Played:
        count = self._plan.instances
        self._say(f"seed {self._plan.seed}, {count} instance{'s' if count > 1 else ''}")
        for item in self._plan.items:
            if not hasattr(item, "at_s"):
                self._say(str(item))
        system = self._system = System(self._project, self._plan, self._say)
        invariants = self._watch(system)
        ends = (item.at_s + item.lasts_s for item in self._plan.items if isinstance(item, Away))
        hours_max = (max(ends, default=0.0) + patience_s(self._project)) / HOUR
        self._running = asyncio.ensure_future(system.world.run(system.at_rest, hours_max))
        try:
            await self._running
        except TimeoutError:
            self._say("not everything comes to an end")
        except asyncio.CancelledError:
            if not self._has_failed:
                if self._transitions_now <= TRANSITIONS_A_SECOND_MAX:  # Ctrl-C
                    raise
                self._say("it goes on without end")
        finally:
            await system.close()
        if not self._has_failed:
            for violation in (*at_end(system), *invariants.left_over()):
                self._broken(violation)
        self._tally(system)
        return self._played

    def _failed(self, violation: Violation, error: Exception | None) -> None:
        """End the story: a function raised what it must not raise."""
        if not self._has_failed and self._running is not None:
            self._broken(violation)
            self._has_failed, self._played.error = True, error
            self._running.cancel()

    def _goes_on(self, span: timedelta) -> None:
        """Give a story more time, because a step waits for something for so long."""
        assert self._system is not None  # noqa: S101  a step waits in it
        world = self._system.world
        until = world.clock.now() + span + timedelta(seconds=patience_s(self._project))
        world.end = max(world.end, until)
        self._system.goes_on_for(span)

    def _say(self, text: str) -> None:
        if self._telling:
            self._played.story.append(f"{self._time()}  {text}")

    def _time(self) -> str:
        now = self._system.world.clock.now() if self._system else START
        days, seconds = divmod((now - START).total_seconds(), DAY)
        hours, seconds = divmod(seconds, HOUR)
        minutes, seconds = divmod(seconds, 60)
        prefix = f"{int(days)}d " if days else ""
        return f"{prefix}{int(hours):02}:{int(minutes):02}:{seconds:06.3f}"

    def _broken(self, violation: Violation) -> None:
        if len(self._played.violations) < VIOLATIONS_MAX and not self._has_failed:
            self._played.violations.append(violation)
            self._say(f"BROKEN: {violation}")

    # --- what is watched ---

    def _watch(self, system: System) -> Invariants:
        self._invariants = Invariants(system, self._broken)
        system.store.on_written = self._on_written
        if self._telling:
            system.world.tell = self._say
        if system.own_agents is not None:
            own_agents, self._played.system = system.own_agents, system
            own_agents.broken, own_agents.failed = self._broken, self._failed
            own_agents.on_later = self._goes_on
            if self._telling:
                own_agents.story = self._say
        elif self._telling:
            for name, agent in system.agents.items():
                for direction in Direction:
                    verb = direction.value
                    setattr(agent, verb, self._narrated(name, verb, getattr(agent, verb)))
        return self._invariants

    def _narrated(self, name: str, verb: str, call_of: Any) -> Any:
        async def narrated(call: AgentCall) -> Any:
            sentence = f"service {name} is asked to {verb} {call.key}"
            self._say(sentence)
            try:
                result = await call_of(call)
            except Exception as error:
                self._say(f"{sentence}: {type(error).__name__}: {error}")
                raise
            self._say(f"{sentence}: {result!r}")
            return result

        return narrated

    def _on_written(self, change: Change) -> None:
        """Check and count one transition."""
        order, entry = change.after, change.entry
        self._invariants.written(change)
        self._played.words[entry.what.value] += 1
        self._check_time(entry.at)
        if self._telling and self._project.script is not None:
            if entry.what is not JournalWord.FENCED:
                names = ", ".join(order.steps[change.step].name for change in entry.changes)
                about = f" ({names})" if names else ""
                self._say(f"order {order.order_id}: {entry.what.value}{about}")
        elif self._telling:
            steps = " ".join(f"{step.name}={step.process_state.value}" for step in order.steps)
            sends = ", ".join(type(message).__name__.lower() for message in entry.messages)
            self._say(
                f"order {order.order_id} seq {entry.seq}: {entry.what.value}, by {entry.by}"
                f" [{steps}]" + (f"; sends {sends}" if sends else "")
            )

    def _check_time(self, at: datetime) -> None:
        """End a simulation in which transitions never stop while time stands still."""
        self._transitions_now = (
            self._transitions_now + 1 if at - self._moment < timedelta(seconds=1) else 0
        )
        if not self._transitions_now:
            self._moment = at
        if self._transitions_now > TRANSITIONS_A_SECOND_MAX and self._running is not None:
            self._running.cancel()

    def _tally(self, system: System) -> None:
        for order_id in system.submitted:
            stored = system.store.orders.get(order_id)
            if stored is not None:
                order = stored.order
                self._played.ends[order.details.workflow, order.process_state.value] += 1
            elif system.is_refused(order_id):
                self._say(f"order {order_id}: rejected")
