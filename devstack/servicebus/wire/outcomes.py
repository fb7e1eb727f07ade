"""What a receiver's delivery state means for the queue, and what to echo.

azure-servicebus 7.15 sends unsettled dispositions and waits for an echo with the same outcome;
a failure is echoed as *rejected* with the condition.
"""

from collections.abc import Mapping
from typing import Any

from devstack.servicebus.amqp import frames
from devstack.servicebus.amqp.decode import Described
from devstack.servicebus.core import settlement
from devstack.servicebus.core.errors import NotAllowedError
from devstack.servicebus.core.queue import QueueCore


def settle(queue: QueueCore, token: bytes, state: object, now: float) -> bytes:
    """Settle one message; return the state to echo. Raises BrokerError where it cannot be."""
    match frames.outcome_code(state):
        case frames.ACCEPTED:
            settlement.complete(queue, token, now)
            return frames.ACCEPTED_STATE
        case frames.RELEASED | None:
            settlement.release(queue, token, now)
            return frames.RELEASED_STATE
        case frames.MODIFIED:
            return _modify(queue, token, state, now)
        case frames.REJECTED:
            _reject(queue, token, state, now)
            return frames.REJECTED_STATE
        case other:
            raise NotAllowedError(f"0x{other:02x} is no outcome that this broker serves")


def _modify(queue: QueueCore, token: bytes, state: object, now: float) -> bytes:
    failed, undeliverable, changes = frames.outcome_fields(state, 3)
    named = _named(changes)
    if undeliverable:
        settlement.defer(queue, token, now, named)
    else:
        settlement.abandon(queue, token, now, named)
    return frames.modified(delivery_failed=bool(failed), undeliverable_here=bool(undeliverable))


def _reject(queue: QueueCore, token: bytes, state: object, now: float) -> None:
    (error,) = frames.outcome_fields(state, 1)
    fields: list[Any] = [None] * 3
    if isinstance(error, Described) and isinstance(error.value, list):
        fields = (error.value + fields)[:3]
    info = dict(_named(fields[2]))
    reason = info.pop("DeadLetterReason", None)
    description = info.pop("DeadLetterErrorDescription", None)
    settlement.dead_letter(queue, token, now, _text(reason), _text(description), info)


def _named(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        return {}
    return {key: item for key, item in value.items() if isinstance(key, str)}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
