"""The callbacks that an order waits for, with their addresses."""

from __future__ import annotations

from datetime import datetime

from sas.domain.command import why_not
from sas.domain.messages import Verb
from sas.domain.order import Order
from sas.features.callbacks.codec import CallbackKeys
from sas.operate.errors import NotPossibleError
from sas.operate.record import Record


class WaitingCallback(Record, frozen=True, kw_only=True):
    """The callback that a step (or its undo) waits for until a moment.

    ``lacking`` says which setting is missing to know ``token`` or ``url``, and what to do.
    """

    order_id: str
    step: str
    direction: str
    until: datetime | None
    note: str | None
    url: str | None
    token: str | None
    lacking: str | None


def waiting_callbacks(order: Order, step: str | None, keys: CallbackKeys) -> list[WaitingCallback]:
    """Return the callbacks that an order waits for, or only that of a step.

    Raises:
        NotPossibleError: it waits for none.
    """
    lacking = None
    if not keys:
        lacking = "not known here: set SAS_CALLBACK_KEY and SAS_CALLBACK_URL as the app has them"
    elif not keys.url:
        lacking = "not known here: set SAS_CALLBACK_URL as the app has it"
    callbacks = []
    for record in order.steps:
        if record.awaits_callback and step in {None, record.name}:
            callback = keys.callback_of(order, record) if keys else None
            waiting = WaitingCallback(
                order_id=order.order_id,
                step=record.name,
                direction=record.direction.value,
                until=record.complete_by,
                note=record.note,
                url=callback.url if callback else None,
                token=callback.token if callback else None,
                lacking=lacking,
            )
            callbacks.append(waiting)
    if not callbacks:
        raise NotPossibleError(f"order {order.order_id}: {why_not(order, Verb.CALLBACK)}")
    return callbacks
