"""One order as its page shows it: its story, its timeline, its next event, and the verbs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sas.codec.payloads import UNREADABLE, is_encoded
from sas.desk.content import indented
from sas.desk.graph import Graph, graph
from sas.domain.command import can_undo
from sas.domain.content import Content, PayloadRef
from sas.domain.messages import JournalEntry, Verb
from sas.domain.order import Direction, Order, OrderState, StepRecord, UndoStatus
from sas.domain.workflow import UnknownWorkflowError, Workflows
from sas.features.circuit_breaker.rules import Breaker
from sas.operate import journal as journals
from sas.operate import why
from sas.operate.commands import Intent, outlook, refusal
from sas.operate.finding import is_failed
from sas.operate.journal import Attempt, Fold
from sas.operate.why import Circuit, Waits

TIMELINE_WIDTH = 1000.0
BAR_WIDTH_MIN = 8.0
"""A shorter attempt is drawn with this width, so that people can see it and point at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptBar:
    """One attempt on the timeline of a step, in units of ``TIMELINE_WIDTH``."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One step: its record, its agent, and its attempts."""

    step: StepRecord
    agent: str | None
    circuit: Circuit | None
    attempts: Sequence[Attempt]
    bars: Sequence[AttemptBar]
    undo: str

    @property
    def failed(self) -> bool:
        """Whether it is in Error."""
        return is_failed(self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbView:
    """A verb that is possible now, and its ``effect``. A ``final`` verb cannot be taken back."""

    name: str
    title: str
    effect: str
    final: bool
    takes_input: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderView:
    """Everything that the page of an order shows.

    ``graph`` is None if the order's workflow is not known. ``folds`` is the journal, the newest
    entry first. The first ``removed`` entries are not stored any more.
    """

    order: Order
    story: str
    waits: Waits
    graph: Graph | None
    steps: Sequence[StepView]
    folds: Sequence[Fold]
    removed: int
    verbs: Sequence[VerbView]
    duration: str


def view(
    order: Order,
    journal: Sequence[JournalEntry],
    *,
    now: datetime,
    circuits: Mapping[str, Breaker],
    workflows: Workflows | None,
) -> OrderView:
    """Return an order as its page shows it."""
    agents = journals.agents_of(order, journal, workflows)
    attempts = journals.attempts(order, journal)
    start = order.details.submitted_at
    end = max([order.stopped_at or now, *(attempt.ended_at or start for attempt in attempts)])
    steps = []
    for step in order.steps:
        attempts_of_step = [attempt for attempt in attempts if attempt.step == step.number]
        agent = agents.get(step.number)
        steps.append(
            StepView(
                step=step,
                agent=agent,
                circuit=why.circuit_of(agent, circuits),
                attempts=attempts_of_step,
                bars=[_bar(attempt, start, end) for attempt in attempts_of_step],
                undo="" if step.undo is UndoStatus.NOT_DECIDED else step.undo.value,
            )
        )
    return OrderView(
        order=order,
        story=why.story(order, journal),
        waits=why.held(
            order,
            why.waits_for(order, now, agents=agents, circuits=circuits),
            journals.left_since(journal),
        ),
        graph=_graph(order, workflows),
        steps=steps,
        folds=journals.folded(order, journal)[::-1],
        removed=journal[0].seq - 1 if journal else 0,
        verbs=verbs_of(order),
        duration=why.spelled(end - start),
    )


def _graph(order: Order, workflows: Workflows | None) -> Graph | None:
    try:
        rules = (
            workflows.rules(order.details.workflow, order.details.version) if workflows else None
        )
    except UnknownWorkflowError:
        return None
    if rules is None or [rule.name for rule in rules.steps] != [step.name for step in order.steps]:
        return None
    return graph(order, rules)


def _bar(attempt: Attempt, start: datetime, end: datetime) -> AttemptBar:
    """Return an attempt on a timeline from ``start`` to ``end``."""
    whole_s = max((end - start) / timedelta(seconds=1), 0.001)
    until = attempt.ended_at or end
    offset = min((attempt.began_at - start) / timedelta(seconds=1) / whole_s, 1.0)
    x = offset * (TIMELINE_WIDTH - BAR_WIDTH_MIN)
    width = (until - attempt.began_at) / timedelta(seconds=1) / whole_s * TIMELINE_WIDTH
    kinds = {"done": "done", "failed": "failed", "timed out": "late", "is out": "out"}
    kind = kinds.get(attempt.outcome, "other")
    if attempt.direction is Direction.UNDO:
        kind += " undo"
    duration = why.spelled(until - attempt.began_at)
    return AttemptBar(
        kind=kind,
        x=round(x, 1),
        width=round(min(max(width, BAR_WIDTH_MIN), TIMELINE_WIDTH - x), 1),
        title=f"{attempt.direction.value} {attempt.epoch}: {attempt.outcome}, {duration}",
    )


_TITLES = {
    Verb.RESUBMIT: "Resubmit",
    Verb.SKIP: "Skip",
    Verb.UNDO: "Undo",
    Verb.CANCEL: "Cancel",
    Verb.ACKNOWLEDGE: "Acknowledge",
    Verb.CALLBACK: "Callback",
}


def verbs_of(order: Order) -> list[VerbView]:
    """Return the verbs that are possible now, each with its effect."""
    undoing = order.direction is Direction.UNDO
    verbs = []
    awaiting = [step.name for step in order.steps if step.awaits_callback]
    for verb, title in _TITLES.items():
        step = awaiting[0] if awaiting and verb is Verb.CALLBACK else None
        intent = Intent(verb=verb, by="", step=step, at_once=True)
        if refusal(order, intent):
            continue
        effect = outlook(order, intent)
        if verb is Verb.CALLBACK:
            effect = f"end {' or '.join(awaiting)} as the callback would: done, or refused"
        verbs.append(
            VerbView(
                name=verb.value,
                title=title,
                effect=f"{effect[0].upper()}{effect[1:]}.",
                final=verb in {Verb.UNDO, Verb.CANCEL},
                takes_input=verb is Verb.RESUBMIT and not undoing,
            )
        )
    if order.process_state is OrderState.ERROR and can_undo(order):
        # In Error no call is out, so a cancel would do the same as an undo.
        verbs = [verb_view for verb_view in verbs if verb_view.name != Verb.CANCEL.value]
    return verbs


def editable(order: Order, step: str | None) -> str:
    """Return the input that a resubmitted step would get: what was edited last, or the order.

    It is empty if it cannot be read. ``step`` is the name of the step. None means the first step
    that failed and was edited.
    """
    content = order.details.payload
    for record in order.steps:
        if is_failed(record) and step in {None, record.name} and record.call.edited is not None:
            content = record.call.edited
            break
    return content if isinstance(content, str) and not is_encoded(content) else ""


def shown(content: Content | None) -> str:
    """Return content for people: indented JSON, or a sentence that says why it cannot be shown."""
    if content is None:
        return ""
    if isinstance(content, PayloadRef):
        return f"(lost: {content.size:,} bytes with SHA-256 {content.sha256})"
    try:
        json.loads(content, parse_int=len, parse_float=len)  # checks the syntax only
    except ValueError:
        return content
    return UNREADABLE if is_encoded(content) else indented(content)
