"""One order as its page shows it: story, timeline, what it waits for, and the verbs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sas.codec.payloads import UNREADABLE, is_encoded
from sas.desk.content import indented
from sas.domain.command import can_undo
from sas.domain.content import Content, PayloadRef
from sas.domain.messages import JournalEntry, Verb
from sas.domain.order import Direction, Order, OrderState, StepRecord, UndoStatus
from sas.domain.workflow import Workflows
from sas.features.circuit_breaker.rules import Breaker
from sas.operate import why
from sas.operate.commands import Intent, outlook, refusal
from sas.operate.finding import is_failed
from sas.operate.why import Attempt, Fold, Waits

WIDTH = 1000.0
BAR_MIN = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One attempt on the timeline, in its units."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One step: its record, its agent, and its attempts."""

    step: StepRecord
    agent: str | None
    circuit: Breaker | None
    attempts: Sequence[Attempt]
    bars: Sequence[Bar]
    undo: str

    @property
    def failed(self) -> bool:
        """Whether it is in Error."""
        return is_failed(self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbView:
    """A verb that is possible now, and what it will do."""

    name: str
    title: str
    will: str
    final: bool
    takes_input: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderView:
    """Everything that the page of an order shows."""

    order: Order
    story: str
    waits: Waits
    steps: Sequence[StepView]
    folds: Sequence[Fold]
    removed: int
    verbs: Sequence[VerbView]
    took: str


def view(
    order: Order,
    journal: Sequence[JournalEntry],
    now: datetime,
    circuits: Mapping[str, Breaker],
    workflows: Workflows | None,
) -> OrderView:
    """Return an order as its page shows it."""
    agents = why.agents_of(order, journal, workflows)
    every = why.attempts(order, journal)
    began = order.details.submitted_at
    ended = max([order.stopped_at or now, *(one.ended_at or began for one in every)])
    steps = []
    for step in order.steps:
        own = [one for one in every if one.step == step.number]
        agent = agents.get(step.number)
        circuit = circuits.get(agent) if agent else None
        bars = [_bar(one, began, ended) for one in own]
        undo = "" if step.undo is UndoStatus.NOT_DECIDED else step.undo.value
        steps.append(
            StepView(step=step, agent=agent, circuit=circuit, attempts=own, bars=bars, undo=undo)
        )
    return OrderView(
        order=order,
        story=why.story(order, journal),
        waits=why.waits_for(order, now, agents=agents, circuits=circuits),
        steps=steps,
        folds=why.folded(journal)[::-1],
        removed=journal[0].seq - 1 if journal else 0,
        verbs=verbs_of(order),
        took=why.spelled(ended - began),
    )


def _bar(one: Attempt, began: datetime, ended: datetime) -> Bar:
    whole = max((ended - began) / timedelta(seconds=1), 0.001)
    until = one.ended_at or ended
    x = min((one.began_at - began) / timedelta(seconds=1) / whole, 1.0) * (WIDTH - BAR_MIN)
    width = (until - one.began_at) / timedelta(seconds=1) / whole * WIDTH
    kind = {"done": "done", "failed": "failed", "timed out": "late", "is out": "out"}
    shown = kind.get(one.outcome, "other")
    if one.direction is Direction.UNDO:
        shown += " undo"
    took = why.spelled(until - one.began_at)
    title = f"{one.direction.value} {one.epoch}: {one.outcome}, {took}"
    return Bar(
        kind=shown, x=round(x, 1), width=round(min(max(width, BAR_MIN), WIDTH - x), 1), title=title
    )


_TITLES = {
    Verb.RESUBMIT: "Resubmit",
    Verb.SKIP: "Skip",
    Verb.UNDO: "Undo",
    Verb.CANCEL: "Cancel",
    Verb.ACKNOWLEDGE: "Acknowledge",
}


def verbs_of(order: Order) -> list[VerbView]:
    """Return the verbs that are possible now, each with what it will do."""
    undoing = order.direction is Direction.UNDO
    found = []
    for verb, title in _TITLES.items():
        intent = Intent(verb=verb, by="")
        if refusal(order, intent):
            continue
        will = outlook(order, intent)
        final = verb in {Verb.UNDO, Verb.CANCEL}
        takes = verb is Verb.RESUBMIT and not undoing
        found.append(
            VerbView(
                name=verb.value,
                title=title,
                will=f"{will[0].upper()}{will[1:]}.",
                final=final,
                takes_input=takes,
            )
        )
    if order.process_state is OrderState.ERROR and can_undo(order):
        # In Error nothing is out: to cancel would do the same as to undo.
        found = [one for one in found if one.name != Verb.CANCEL.value]
    return found


def editable(order: Order, step: str | None) -> str:
    """Return the input that a resubmitted step would get: what was edited last, or the order.

    It is empty where it cannot be read.
    """
    content = order.details.payload
    for one in order.steps:
        if is_failed(one) and step in {None, one.name} and one.call.edited is not None:
            content = one.call.edited
            break
    readable = isinstance(content, str) and not is_encoded(content)
    return content if isinstance(content, str) and readable else ""


def shown(content: Content | None) -> str:
    """Return content for people: indented JSON, or that it is encrypted."""
    if content is None:
        return ""
    if isinstance(content, PayloadRef):
        return f"(lost: {content.size:,} bytes with SHA-256 {content.sha256})"
    try:
        json.loads(content, parse_int=len, parse_float=len)  # checks the syntax only
    except ValueError:
        return content
    return UNREADABLE if is_encoded(content) else indented(content)
