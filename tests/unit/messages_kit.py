"""Messages that lie in the queues of operators."""

from __future__ import annotations

from typing import Any

import msgspec

from sas.codec.external import (
    KEPT_BYTES_MAX,
    AlertMessage,
    Rejection,
    encode,
    rejected_message,
)
from sas.domain.ids import key_time
from sas.ports import RefusedError
from sas.testing.clock import START
from tests.unit.actors_kit import QUEUES
from tests.unit.cli_kit import Night

DECLINED = RefusedError("card-declined", "the card was declined")
ALERTS, REJECTED, DEAD = QUEUES.alerts, QUEUES.rejected, "/$DeadLetterQueue"
GIVEN_UP = {
    "DeadLetterReason": "MaxDeliveryCountExceeded",
    "DeadLetterErrorDescription": "Message could not be consumed after 10 delivery attempts.",
}
ORDER = b'{"order_id":"A-1","workflow":"order","reply_queue":"responses-web-shop","order":{}}'


def dead(night: Night, queue: str, body: bytes, message_id: str, **members: Any) -> None:
    night.put(queue + DEAD, body, message_id=message_id, **({"properties": GIVEN_UP} | members))


def reject(
    night: Night,
    body: bytes = ORDER,
    source: str = "orders",
    reason: str = "unknown-workflow",
    *,
    parts: int = 1,
    bytes_max: int = KEPT_BYTES_MAX,
) -> None:
    """Put a rejected message of A-1 where a plan can take it. Older versions made ``parts``."""
    rejection = Rejection(
        body=body,
        reason=reason,
        description="nobody knows it",
        source_queue=source,
        message_id="m-1",
        order_id="A-1",
        correlation_id="c-1",
    )
    name = f"rejected/{len(night.lying.get(REJECTED, ()))}"
    message = rejected_message(rejection, at=START, own_id=f"{name}/1", bytes_max=bytes_max)
    size = -(-len(message.body) // parts)
    for number in range(parts):
        piece = msgspec.structs.replace(
            message,
            body=message.body[number * size : (number + 1) * size],
            id=f"{name}/{number + 1}",
            part=number + 1,
            parts=parts,
        )
        night.put(REJECTED, encode(piece), message_id=piece.id)


def alert(night: Night, name: str, text: str = "it failed", **members: Any) -> None:
    at = night.system.clock.now()
    body = {"kind": "waiting", "at": key_time(at), "text": text, "id": name} | members
    night.put(ALERTS, encode(AlertMessage(**body)), message_id=name)
