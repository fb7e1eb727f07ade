"""The messages of a journal row.

Pure: the same row of the same order always gives the same messages with the same ids. So it is safe
to send them again after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from sas.codec import external, internal
from sas.domain.claim import is_out
from sas.domain.content import Content, PayloadRef, size_of
from sas.domain.ids import idempotency_key, key_time, message_id
from sas.domain.messages import Alert, AlertKind, JournalEntry, Notice, Notify, Request, Wake
from sas.domain.order import Direction, Order, OrderState
from sas.domain.queues import Queues, lane
from sas.domain.texts import command
from sas.domain.workflow import Workflow
from sas.engine.delivery import ORDER_ID
from sas.ports import Message

_STATE_OF = {
    Notice.RECEIVED: OrderState.PENDING,
    Notice.STEP_COMPLETED: OrderState.PROCESSING,
    Notice.COMPLETED: OrderState.PROCESSED,
    Notice.FAILED: OrderState.ERROR,
    Notice.UNDONE: OrderState.COMPENSATED,
    Notice.REJECTED: OrderState.REJECTED,
}

_SHOW = ("sas show", "order")
COMMANDS: Mapping[AlertKind, tuple[str, ...]] = {
    AlertKind.STEP_FAILED: _SHOW,
    AlertKind.UNDO_FAILED: _SHOW,
    AlertKind.OVERDUE: _SHOW,
    AlertKind.COMMAND_REFUSED: _SHOW,
    AlertKind.REJECTED: ("sas messages list rejected",),
    AlertKind.DEAD_LETTERED: ("sas messages show", "message"),
    AlertKind.UNDELIVERABLE: ("sas status",),
    AlertKind.BREAKER_OPEN: ("sas status",),
    AlertKind.AGENT_FAILING: ("sas status",),
    AlertKind.WAITING: ("sas list --state running --workflow", "workflow"),
    AlertKind.NOT_PICKED_UP: ("sas status",),
    AlertKind.QUEUE_DELAY: ("sas status",),
    AlertKind.NOT_RUNNABLE: ("sas status",),
    AlertKind.UNREADABLE: ("sas status",),
}
"""The command to run first, and what it names, by the kind of an alert. An incident that is over
(cleared) has none: nothing is left to do. An unreadable part of one order has the command of that
order."""

NOTIFICATION_RESULTS_BYTES_MAX = 64 * 1024
"""A notification carries results up to this size. If it leaves them out, it says so."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The queues that messages go to, and the source that CloudEvents name."""

    queues: Queues
    source: str


def compose(
    order: Order,
    entry: JournalEntry,
    workflow: Workflow | None,
    to: Addresses,
    fetched: Mapping[PayloadRef, str] | None = None,
) -> tuple[list[Message], list[Message]]:
    """Return the messages of a journal row: internal ones, then those that leave the system.

    Alerts come before notifications, so that a full response queue does not delay them.

    ``workflow`` is None for the supervisor, which knows no workflow. Then requests are left out:
    rows of the supervisor have none, and a scheduler sends its requests before a notification can
    fail. ``fetched`` holds the text of offloaded results. If one is missing, its notification
    carries no results.
    """
    internals: list[Message] = []
    alerts: list[Message] = []
    notifications: list[Message] = []
    for index, item in enumerate(entry.messages):
        own_id = message_id(order.order_id, entry.seq, index)
        match item:
            case Wake():
                internals.append(wake(order, own_id, to, entry.seq))
            case Request():
                # No reply would count any more, and the input may be edited since.
                if workflow is not None and is_out(order, item.step, item.direction, item.epoch):
                    internals.append(
                        _request(order, item, own_id=own_id, entry=entry, workflow=workflow, to=to)
                    )
            case Notify():
                notifications.append(
                    _notification(
                        order, item, own_id=own_id, entry=entry, to=to, fetched=fetched or {}
                    )
                )
            case Alert():
                alerts.append(
                    _alert(order, item, own_id=own_id, entry=entry, to=to, workflow=workflow)
                )
    return internals, [*alerts, *notifications]


def results_to_notify(order: Order, item: Notify) -> dict[str, Content]:
    """Return the results, by step name, that a notification carries if they fit."""
    match item.notice:
        case Notice.COMPLETED:
            steps = order.steps
        case Notice.STEP_COMPLETED if item.step is not None:
            steps = (order.steps[item.step],)
        case _:
            steps = ()
    return {step.name: step.result for step in steps if step.result is not None}


def results_fit(results: Mapping[str, Content]) -> bool:
    """Return whether results fit into one notification together."""
    return sum(size_of(result) for result in results.values()) <= NOTIFICATION_RESULTS_BYTES_MAX


def wake(order: Order, own_id: str, to: Addresses, seq: int) -> Message:
    """Return a message that asks a scheduler to process an order. It is sent at ``seq``."""
    body = internal.encode(internal.WakeMessage(id=own_id, order_id=order.order_id, seq=seq))
    return Message(lane(to.queues.scheduler, urgent=order.details.urgent), own_id, body)


def notification(
    notice: Notice,
    data: external.NotificationData,
    *,
    own_id: str,
    reply_queue: str,
    at: datetime,
    to: Addresses,
) -> Message:
    """Return a CloudEvent for an application's response queue."""
    event = external.Notification(
        id=own_id,
        source=to.source,
        type=external.event_type(notice),
        subject=data.order_id,
        time=key_time(at),
        correlationid=data.correlation_id or msgspec.UNSET,
        data=data,
    )
    return Message(
        reply_queue,
        own_id,
        external.encode(event),
        content_type=external.CLOUDEVENTS_TYPE,
        correlation_id=data.correlation_id,
        properties={"sas_event": notice.value, ORDER_ID: data.order_id},
    )


def alert(body: external.AlertMessage, to: Addresses) -> Message:
    """Return a message for the operator. It names the command to run."""
    body = msgspec.structs.replace(body, command=_command(AlertKind(body.kind), body))
    return Message(
        to.queues.alerts, body.id, external.encode(body), properties={"sas_alert": body.kind}
    )


def _command(kind: AlertKind, body: external.AlertMessage) -> str | None:
    arguments = {
        "order": body.order_id,
        "workflow": body.workflow,
        "message": f"{body.id.removesuffix('/alert')}/1",  # the first part of a rejected message
    }
    words = _SHOW if kind is AlertKind.UNREADABLE and body.order_id else COMMANDS.get(kind)
    return (words and command(words[0], *(arguments[name] or "" for name in words[1:]))) or None


def _request(
    order: Order, item: Request, own_id: str, entry: JournalEntry, workflow: Workflow, to: Addresses
) -> Message:
    step, record = workflow.steps[item.step], order.steps[item.step]
    content = record.call.edited or order.details.payload
    own_result = record.result if item.direction is Direction.UNDO else None
    results = _results(order, workflow.rules.predecessors(item.step))
    refs = {name: internal.to_ref_body(result) for name, result in results.items()}
    body = internal.RequestMessage(
        id=own_id,
        order_id=order.order_id,
        workflow=workflow.name,
        step=item.step,
        step_name=step.name,
        direction=item.direction.value,
        epoch=item.epoch,
        complete_by=item.complete_by,
        idempotency_key=idempotency_key(order.order_id, step.name, item.generation),
        generation=item.generation,
        order=internal.inline(content),
        order_ref=internal.to_ref_body(content),
        results=_inline(results),
        result_refs={name: ref for name, ref in refs.items() if ref is not None},
        own_result=internal.inline(own_result),
        own_result_ref=internal.to_ref_body(own_result),
        urgent=order.details.urgent,
        submission=order.details.submission,
        time_allowed=(item.complete_by - entry.at).total_seconds(),
        seq=entry.seq,
    )
    encoded = internal.encode(body)
    if len(encoded) > internal.INLINE_BYTES_MAX:
        read = [*results, *([step.name] if own_result is not None else [])]
        encoded = internal.encode(_without_content(body, read))
    # No time to live of its own: in a long queue a request outlives its CompleteBy.
    queue = to.queues.agent(step.agents[record.call.route], urgent=order.details.urgent)
    return Message(queue, own_id, encoded)


def _without_content(
    body: internal.RequestMessage, names: Iterable[str]
) -> internal.RequestMessage:
    """Return a request without content. The agent reads it from the store: the order, and the
    results of the steps in ``names``.
    """
    return msgspec.structs.replace(
        body,
        order=msgspec.UNSET,
        order_ref=None,
        results=dict.fromkeys(names, msgspec.Raw(b"null")),
        result_refs={},
        own_result=msgspec.UNSET,
        own_result_ref=None,
    )


def _results(order: Order, numbers: tuple[int, ...]) -> dict[str, Content]:
    steps = [order.steps[number] for number in numbers]
    return {step.name: step.result for step in steps if step.result is not None}


def _inline(results: Mapping[str, Content]) -> dict[str, msgspec.Raw]:
    texts = ((name, result) for name, result in results.items() if isinstance(result, str))
    return {name: msgspec.Raw(text.encode()) for name, text in texts}


def _notification(
    order: Order,
    item: Notify,
    own_id: str,
    entry: JournalEntry,
    to: Addresses,
    fetched: Mapping[PayloadRef, str],
) -> Message:
    details = order.details
    step = order.steps[item.step] if item.step is not None else None
    data = external.NotificationData(
        order_id=details.order_id,
        state=_STATE_OF[item.notice].value,
        workflow=details.workflow,
        version=details.version,
        correlation_id=details.correlation_id,
        seq=entry.seq,
        step=step.name if step else None,
        error=external.Error(item.fault.code, item.fault.message) if item.fault else None,
        awaits=_awaits(item),
    )
    return notification(
        item.notice,
        _with_results(data, order, item, fetched),
        own_id=own_id,
        reply_queue=details.reply_queue,
        at=entry.at,
        to=to,
    )


def _with_results(
    data: external.NotificationData, order: Order, item: Notify, fetched: Mapping[PayloadRef, str]
) -> external.NotificationData:
    """Return the data with the results that the notification carries: all of them, or none."""
    results = results_to_notify(order, item)
    inline = {
        name: fetched.get(result) if isinstance(result, PayloadRef) else result
        for name, result in results.items()
    }
    texts = {name: msgspec.Raw(text.encode()) for name, text in inline.items() if text is not None}
    if not results_fit(results) or len(texts) < len(results):
        return msgspec.structs.replace(data, results_omitted=True)
    if item.notice is Notice.COMPLETED:
        return msgspec.structs.replace(data, results=texts)
    return msgspec.structs.replace(data, result=next(iter(texts.values()), msgspec.UNSET))


def _awaits(item: Notify) -> Literal["undo", "operator"] | None:
    if item.notice is not Notice.FAILED:
        return None
    return "undo" if item.undoing else "operator"


def _alert(
    order: Order,
    item: Alert,
    own_id: str,
    entry: JournalEntry,
    to: Addresses,
    workflow: Workflow | None,
) -> Message:
    step = order.steps[item.step] if item.step is not None else None
    fault = step.error if step else None
    agents = workflow.steps[step.number].agents if workflow and step else ()
    body = external.AlertMessage(
        kind=item.alert.value,
        at=key_time(entry.at),
        text=item.text,
        id=own_id,
        order_id=order.order_id,
        step=step.name if step else None,
        workflow=order.details.workflow,
        seq=entry.seq,
        agent=agents[step.call.route] if step and step.call.route < len(agents) else None,
        attempts=step.epoch if step else None,
        error=external.Error(fault.code, fault.message) if fault else None,
        fingerprint=f"{step.name}/{fault.code}" if step and fault else None,
    )
    return alert(body, to)
