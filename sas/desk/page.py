"""One order as its page draws it: its steps as a picture and on a timeline, and its content."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from sas.codec.payloads import UNREADABLE, is_encoded
from sas.desk.content import indented
from sas.desk.graph import GAP, Graph, graph
from sas.domain.content import Content, PayloadRef
from sas.domain.order import Direction, Order, StepState
from sas.domain.texts import visible
from sas.domain.workflow import Rules, UnknownWorkflowError, Workflows
from sas.operate.finding import is_failed
from sas.operate.journal import Attempt
from sas.operate.orders import OrderStory, StepStory
from sas.operate.why import spelled

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
    """One step: the ``lines`` of its box in the picture, and its attempts as bars."""

    step: StepStory
    lines: tuple[str, str, str]
    bars: Sequence[AttemptBar]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderView:
    """What the page of an order draws beside its story.

    ``label`` says what ``graph`` shows. ``ordered``: the workflow is known, so the graph has lines.
    ``pauses`` has the time from the row before to each journal row, by seq.
    """

    graph: Graph
    label: str
    ordered: bool
    steps: Sequence[StepView]
    pauses: Mapping[int, timedelta]
    duration: str


def view(story: OrderStory, workflows: Workflows | None, now: datetime) -> OrderView:
    """Return how the page of an order draws it."""
    rules = _rules(story, workflows)
    attempts = [attempt for step in story.steps for attempt in step.attempts]
    start = story.order.details.submitted_at
    end = max([story.order.stopped_at or now, *(attempt.ended_at or start for attempt in attempts)])
    steps = [
        StepView(
            step=step,
            lines=(
                step.record.name,
                " · ".join(filter(None, (step.record.process_state.value, step.agent))),
                _facts(step, _awaited_steps(step, story, rules), end),
            ),
            bars=[_bar(attempt, start, end) for attempt in step.attempts],
        )
        for step in story.steps
    ]
    characters = max(len(line) for step in steps for line in step.lines)
    width = CHARACTER_WIDTH * min(characters, CHARACTERS_MAX) + 2 * GAP
    rows = [row for fold in story.folds for row in fold.rows]
    return OrderView(
        graph=graph(len(steps), rules, max(width, BOX_WIDTH_MIN)),
        label=" ".join(f"{', '.join(step.lines)}." for step in steps),
        ordered=rules is not None,
        steps=steps,
        pauses={later.seq: later.at - row.at for row, later in pairwise(rows)},
        duration=spelled(end - start),
    )


def _rules(story: OrderStory, workflows: Workflows | None) -> Rules | None:
    """Return the rules of an order, if its workflow is known and has its steps."""
    order = story.order
    with suppress(UnknownWorkflowError):
        rules = (
            workflows.rules(order.details.workflow, order.details.version) if workflows else None
        )
        if rules and [rule.name for rule in rules.steps] == [step.name for step in order.steps]:
            return rules
    return None


def _awaited_steps(step: StepStory, story: OrderStory, rules: Rules | None) -> Sequence[str]:
    """Return the steps that must be done before a step begins, if that is known."""
    earlier = rules.steps[step.record.number].after if rules else ()
    others = [story.order.steps[number] for number in earlier]
    return [other.name for other in others if other.process_state is not StepState.PROCESSED]


def _facts(step: StepStory, awaited_steps: Sequence[str], end: datetime) -> str:
    """Return how long a step took, in how many attempts, and what it waits for."""
    doing = step.waits.doing if step.waits else ""
    if not step.attempts:
        names = " and ".join(awaited_steps)
        return doing or (f"waits for {names}" if names else "not begun")
    spans = [(attempt.ended_at or end) - attempt.began_at for attempt in step.attempts]
    times = f" in {len(spans)} attempts" if len(spans) > 1 else ""
    return ", ".join(filter(None, (f"{spelled(sum(spans, timedelta()))}{times}", doing)))


_KINDS = {"done": "done", "failed": "failed", "timed out": "late", "is out": "out"}


def _bar(attempt: Attempt, start: datetime, end: datetime) -> AttemptBar:
    """Return an attempt on a timeline from ``start`` to ``end``."""
    whole_s = max((end - start) / timedelta(seconds=1), 0.001)
    until = attempt.ended_at or end
    offset = min((attempt.began_at - start) / timedelta(seconds=1) / whole_s, 1.0)
    x = offset * (TIMELINE_WIDTH - BAR_WIDTH_MIN)
    width = (until - attempt.began_at) / timedelta(seconds=1) / whole_s * TIMELINE_WIDTH
    kind = _KINDS.get(attempt.outcome, "other")
    if attempt.direction is Direction.UNDO:
        kind += " undo"
    duration = spelled(until - attempt.began_at)
    return AttemptBar(
        kind=kind,
        x=round(x, 1),
        width=round(min(max(width, BAR_WIDTH_MIN), TIMELINE_WIDTH - x), 1),
        title=f"{attempt.direction.value} {attempt.epoch}: {attempt.outcome}, {duration}",
    )


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
    """Return content for people: indented JSON, or a sentence that says why it cannot be shown.

    It has no invisible character but the ends of its lines.
    """
    if content is None:
        return ""
    if isinstance(content, PayloadRef):
        return f"(lost: {content.size:,} bytes with SHA-256 {content.sha256})"
    try:
        json.loads(content, parse_int=len, parse_float=len)  # checks the syntax only
    except ValueError:
        return "\n".join(map(visible, content.split("\n")))
    return UNREADABLE if is_encoded(content) else indented(content)
