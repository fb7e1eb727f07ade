"""From what a journal row remembers to the messages themselves.

Pure: the same row of the same order gives the same messages, with the same ids, however
often it is done. That is what makes sending them again after a crash safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from sas.codec import internal, outward
from sas.domain.ids import idempotency_key, key_time, message_id
from sas.domain.messages import Alert, JournalEntry, Notice, Notify, Request, Wake
from sas.domain.model import Direction, Fault, Order, OrderState, StepRecord
from sas.domain.queues import Queues
from sas.domain.workflow import Workflow
from sas.ports import Message

RESULTS_BYTES_MAX = 64 * 1024
_STATE_OF = {
    Notice.RECEIVED: OrderState.PENDING,
    Notice.STEP_COMPLETED: OrderState.PROCESSING,
    Notice.COMPLETED: OrderState.PROCESSED,
    Notice.FAILED: OrderState.ERROR,
    Notice.UNDONE: OrderState.COMPENSATED,
    Notice.REJECTED: OrderState.REJECTED,
}


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where messages go, and who they say they are from (the CloudEvents source)."""

    queues: Queues
    source: str


def compose(
    order: Order, entry: JournalEntry, workflow: Workflow | None, to: Addresses
) -> tuple[list[Message], list[Message]]:
    """Return the messages of a journal row: internal ones, then those that leave the system.
    Of these alerts come first: an application's full queue must not keep them from the operator.

    ``workflow`` None (the supervisor knows none) leaves requests out: its own rows have
    none, and a scheduler's were sent before its notifications could fail.
    """
    within: list[Message] = []
    alerts: list[Message] = []
    notices: list[Message] = []
    for index, item in enumerate(entry.messages):
        own_id = message_id(order.order_id, entry.seq, index)
        match item:
            case Wake():
                within.append(wake(order.order_id, own_id, to))
            case Request():
                # Nobody would count the answer to an older epoch; its input may be edited since.
                if workflow is not None and order.steps[item.step].epoch == item.epoch:
                    within.append(_request(order, item, own_id, entry.at, workflow, to))
            case Notify():
                notices.append(_notification(order, item, own_id, entry, to))
            case Alert():
                alerts.append(_alert(order, item, own_id, entry, to))
    return within, [*alerts, *notices]


def wake(order_id: str, own_id: str, to: Addresses) -> Message:
    """Return a message that asks a scheduler to look at an order."""
    body = internal.encode(internal.WakeMessage(id=own_id, order_id=order_id))
    return Message(to.queues.scheduler, own_id, body)


def notification(
    notice: Notice,
    data: outward.NotificationData,
    *,
    own_id: str,
    reply_queue: str,
    at: datetime,
    to: Addresses,
) -> Message:
    """Return a CloudEvent for an application's response queue."""
    event = outward.Notification(
        id=own_id,
        source=to.source,
        type=outward.event_type(notice.value),
        subject=data.order_id,
        time=key_time(at),
        correlationid=data.correlation_id or msgspec.UNSET,
        data=data,
    )
    return Message(
        reply_queue,
        own_id,
        outward.encode(event),
        content_type=outward.CLOUDEVENTS_TYPE,
        correlation_id=data.correlation_id,
        properties={"sas_event": notice.value, "sas_order_id": data.order_id},
    )


def alert(body: outward.AlertMessage, to: Addresses) -> Message:
    """Return a message for the operator."""
    return Message(
        to.queues.alerts, body.id, outward.encode(body), properties={"sas_alert": body.kind}
    )


def _request(
    order: Order, item: Request, own_id: str, at: datetime, workflow: Workflow, to: Addresses
) -> Message:
    step = workflow.steps[item.step]
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
        order=internal.raw(order.steps[item.step].edited or order.details.payload),
        results=_results(order, workflow.rules.predecessors(item.step)),
        own_result=internal.raw(
            order.steps[item.step].result if item.direction is Direction.UNDO else None
        ),
        time_allowed=(item.complete_by - at).total_seconds(),
    )
    encoded = internal.encode(body)
    if len(encoded) > internal.INLINE_BYTES_MAX:
        names = dict.fromkeys(body.results, msgspec.Raw(b"null"))  # whose results to read
        light = msgspec.structs.replace(
            body, order=msgspec.UNSET, results=names, own_result=msgspec.UNSET
        )
        encoded = internal.encode(light)
    # "Requests live no longer than their CompleteBy."
    lives = max(item.complete_by - at, timedelta(seconds=1))
    return Message(to.queues.agent(step.agent), own_id, encoded, time_to_live=lives)


def _results(order: Order, numbers: tuple[int, ...]) -> dict[str, msgspec.Raw]:
    texts = ((order.steps[n].name, order.steps[n].result) for n in numbers)
    return {name: msgspec.Raw(text.encode()) for name, text in texts if text is not None}


def _notification(
    order: Order, item: Notify, own_id: str, entry: JournalEntry, to: Addresses
) -> Message:
    details = order.details
    step = order.steps[item.step] if item.step is not None else None
    data = outward.NotificationData(
        order_id=details.order_id,
        state=_STATE_OF[item.notice].value,
        workflow=details.workflow,
        version=details.version,
        correlation_id=details.correlation_id,
        seq=entry.seq,
        step=step.name if step else None,
        result=_own_result(item, step),
        error=_error(item.fault),
        awaits=_awaits(item),
    )
    if item.notice is Notice.COMPLETED:
        results = _results(order, tuple(range(len(order.steps))))
        fits = sum(len(bytes(r)) for r in results.values()) <= RESULTS_BYTES_MAX
        data = msgspec.structs.replace(
            data, results=results if fits else None, results_omitted=not fits
        )
    return notification(
        item.notice, data, own_id=own_id, reply_queue=details.reply_queue, at=entry.at, to=to
    )


def _own_result(item: Notify, step: StepRecord | None) -> internal.Part:
    completed = item.notice is Notice.STEP_COMPLETED
    return internal.raw(step.result if completed and step else None)


def _awaits(item: Notify) -> Literal["undo", "operator"] | None:
    if item.notice is not Notice.FAILED:
        return None
    return "undo" if item.undoing else "operator"


def _error(fault: Fault | None) -> outward.Error | None:
    return outward.Error(fault.code, fault.message) if fault else None


def _alert(order: Order, item: Alert, own_id: str, entry: JournalEntry, to: Addresses) -> Message:
    body = outward.AlertMessage(
        kind=item.alert.value,
        at=key_time(entry.at),
        text=item.text,
        id=own_id,
        order_id=order.order_id,
        step=order.steps[item.step].name if item.step is not None else None,
        workflow=order.details.workflow,
        seq=entry.seq,
    )
    return alert(body, to)
