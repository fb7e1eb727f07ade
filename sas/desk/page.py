"""One order as its page shows it: its story, its timeline, its next event, and the verbs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from sas.codec.payloads import UNREADABLE, is_encoded
from sas.desk.content import indented
from sas.desk.graph import GAP, Graph, graph
from sas.domain.command import can_undo
from sas.domain.content import Content, PayloadRef
from sas.domain.messages import JournalEntry, Verb
from sas.domain.order import AttemptError, Direction, Fault, Order, OrderState, StepRecord, StepState, UndoStatus
from sas.domain.workflow import Rules, UnknownWorkflowError, Workflows
from sas.features.circuit_breaker.rules import Breaker
from sas.operate import why
from sas.operate.commands import Intent, outlook, refusal
from sas.operate.finding import is_failed
from sas.operate.why import Attempt, Waits

CHARACTER_WIDTH, CHARACTERS_MAX, BOX_WIDTH_MIN = 7.5, 30, 130.0
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
    """One step: the lines of its box in the picture, and its attempts as bars.

    ``doing`` says what it does or waits for ``until`` a moment, ``more`` what else is to be known.
    """

    name: str
    tone: str
    lines: Sequence[str]
    bars: Sequence[AttemptBar]
    failed: bool
    error: Fault | None
    last_error: AttemptError | None
    doing: str
    until: datetime | None
    note: str | None
    more: str


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

    ``label`` says what ``graph`` shows. ``ordered``: the workflow is known, so the graph has lines.
    ``folds`` is the journal, the newest row first, and ``pauses`` the time from the row before to
    each row, by seq. The first ``removed`` rows are not stored any more.
    """

    order: Order
    story: str
    waits: Waits
    graph: Graph
    label: str
    ordered: bool
    steps: Sequence[StepView]
    folds: Sequence[Any]
    pauses: Mapping[int, timedelta]
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
    agents = why.agents_of(order, journal, workflows)
    attempts = why.attempts(order, journal)
    rules = _rules(order, workflows)
    start = order.details.submitted_at
    end = max([order.stopped_at or now, *(attempt.ended_at or start for attempt in attempts)])
    steps = [
        _step(
            step,
            [attempt for attempt in attempts if attempt.step == step.number],
            agent=agents.get(step.number, ""),
            after=[order.steps[number] for number in rules.steps[step.number].after]
            if rules
            else [],
            span=(start, end),
        )
        for step in order.steps
    ]
    width = CHARACTER_WIDTH * max(min(len(line), CHARACTERS_MAX) for step in steps for line in step.lines)
    from types import SimpleNamespace as N
    folds = [N(rows=[N(seq=e.seq, at=e.at, what=str(e.what), by=e.by, reason=e.reason, changes=[why.change(order, c) for c in e.changes], messages=[N(text=why.sent(order, m)) for m in e.messages]) for e in fold.entries], words=fold.words, is_run=fold.is_run) for fold in why.folded(journal)]
    return OrderView(
        order=order,
        story=why.story(order, journal),
        waits=why.held(
            order,
            why.waits_for(order, now, agents=agents, circuits=circuits),
            why.left_since(journal),
        ),
        graph=graph(len(steps), rules, max(width + 2 * GAP, BOX_WIDTH_MIN)),
        label=" ".join(f"{', '.join(step.lines)}." for step in steps),
        ordered=rules is not None,
        steps=steps,
        folds=folds[::-1],
        pauses={later.seq: later.at - row.at for row, later in pairwise(journal)},
        removed=journal[0].seq - 1 if journal else 0,
        verbs=verbs_of(order),
        duration=why.spelled(end - start),
    )


def _step(
    step: StepRecord,
    attempts: Sequence[Attempt],
    *,
    agent: str,
    after: Sequence[StepRecord],
    span: tuple[datetime, datetime],
) -> StepView:
    undo = "" if step.undo is UndoStatus.NOT_DECIDED else f"undo {step.undo.value}"
    return StepView(
        name=step.name,
        tone=step.process_state.value.lower(),
        lines=[
            step.name,
            " · ".join(filter(None, (step.process_state.value, agent, undo))),
            _facts(step, attempts, after, span[1]),
        ],
        bars=[_bar(attempt, *span) for attempt in attempts],
        failed=is_failed(step),
        error=step.error,
        last_error=None if step.process_state.value in {"Processed", "Compensated"} else step.last_error,
        doing=_doing(step),
        until=step.complete_by if step.resting or step.dispatched else None,
        note=step.note,
        more=" ".join(_more(step)),
    )


def _facts(
    step: StepRecord, attempts: Sequence[Attempt], after: Sequence[StepRecord], end: datetime
) -> str:
    """Return how long a step took in how many attempts, and what it waits for."""
    if not attempts:
        names = [other.name for other in after if other.process_state is not StepState.PROCESSED]
        if step.complete_by is not None:
            return _doing(step).lower()
        return f"waits for {' and '.join(names)}" if names else "not begun"
    spent = sum(((attempt.ended_at or end) - attempt.began_at for attempt in attempts), timedelta())
    times = "" if len(attempts) == 1 else f" in {len(attempts)} attempts"
    return f"{why.spelled(spent)}{times}" + (f", {_doing(step).lower()}" if step.complete_by else "")


def _doing(step: StepRecord) -> str:
    return (
        "Rests"
        if step.resting
        else "Waits for the callback"
        if step.awaits_callback
        else "Goes on"
        if step.note
        else "Out"
        if step.dispatched
        else "Ready"
    )


def _more(step: StepRecord) -> Iterator[str]:
    if step.call.generation:
        times = "1 time" if step.call.generation == 1 else f"{step.call.generation} times"
        yield f"Its input was edited {times}."
    if step.call.route:
        yield f"With agent number {step.call.route + 1} of the step."


def _rules(order: Order, workflows: Workflows | None) -> Rules | None:
    """Return the rules of an order, if its workflow is known and has its steps."""
    with suppress(UnknownWorkflowError):
        details = order.details
        rules = workflows.rules(details.workflow, details.version) if workflows else None
        if rules and [rule.name for rule in rules.steps] == [step.name for step in order.steps]:
            return rules
    return None


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
        intent = Intent(verb=verb, by="", step=step)
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
