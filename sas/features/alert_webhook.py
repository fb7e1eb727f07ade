"""Feature: alerts go to a webhook too. Each is copied to a queue, whose function posts it.

The alert itself stays on ``operator-alerts``, where ``sas alerts`` shows it. Its copy has a queue
of its own, so a webhook that is away for days delays nothing: the function puts the copy back, with
a growing pause. An incident sends few alerts, and so few copies.

A request is signed as https://www.standardwebhooks.com describes, so its receiver needs no code of
ours. The same alert may come twice: ``webhook-id`` is then the same.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sas.domain.ids import digest_id, parse_key_time
from sas.domain.queues import Queues
from sas.engine.delivery import Delivery
from sas.engine.outward import Outward
from sas.engine.receiver import FIRST_AT
from sas.ports import (
    Clock,
    Message,
    MessageBus,
    Peeked,
    StateStore,
    UnavailableError,
    UndeliverableError,
)
from sas.telemetry.tracing import logger

log = logger(__name__)
KEPT_FOR = timedelta(days=30)
"""A copy that the webhook did not take for so long is given up. Its alert stays on the queue."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """The address that gets alerts, and the keys that sign them. False without an address.

    Every key signs: a receiver that knows one of them can verify.
    """

    url: str = field(default="", repr=False)
    keys: Sequence[bytes] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        return bool(self.url)


Post = Callable[[str, Mapping[str, str], bytes], Awaitable[str]]
"""Posts a body with these headers to an address. Returns why it was not taken; "" if it was."""


class WebhookAwayError(UnavailableError):
    """The webhook did not take an alert. It is posted again, after a growing pause."""

    delay_max_s = 900.0


class AlertCopies:
    """A bus that also sends a copy of each alert to the webhook's queue.

    A copy that its queue does not take now is held in the store, as other messages to the outside.
    """

    def __init__(self, store: StateStore, bus: MessageBus, clock: Clock, queues: Queues) -> None:
        self._bus = bus
        self._queues = queues
        self._outward = Outward(store, bus, clock)

    async def send(self, messages: Sequence[Message]) -> None:
        """See ``MessageBus.send``. It also raises StoreUnavailableError: send all of them again."""
        await self._bus.send(messages)
        copies = [
            replace(one, queue=self._queues.alert_copies)
            for one in messages
            if one.queue == self._queues.alerts
        ]
        if copies:
            try:
                await self._outward.send(copies, copies[0].message_id)
            except UndeliverableError as refused:
                log.error("an alert does not go to the webhook: %s", refused)  # noqa: TRY400

    async def peek(self, queue: str, limit: int) -> list[Peeked]:
        """See ``MessageBus.peek``."""
        return await self._bus.peek(queue, limit)

    async def close(self) -> None:
        """See ``MessageBus.close``."""
        await self._bus.close()


class AlertWebhook:
    """Handles the queue of the copies: posts each to the webhook."""

    def __init__(self, clock: Clock, webhook: Webhook, post: Post) -> None:
        self._clock = clock
        self._webhook = webhook
        self._post = post

    async def handle(self, delivery: Delivery) -> None:
        """Post one alert.

        Raises:
            WebhookAwayError: there is no webhook, or it did not take the alert. Put it back.
        """
        if not self._webhook:  # another instance has the setting, or the next start
            raise WebhookAwayError("no SAS_ALERT_WEBHOOK_URL is set, or not on this instance")
        now = self._clock.now()
        headers = signed(delivery.message_id, delivery.body, now, self._webhook.keys)
        refusal = await self._post(self._webhook.url, headers, delivery.body)
        if not refusal:
            return
        if now - _first_at(delivery, now) < KEPT_FOR:
            raise WebhookAwayError(f"the alert webhook {refusal}")
        log.error(
            "alert %s was not taken for %d days and is not posted again: the webhook %s. It lies "
            "on the queue of alerts unless it was removed",
            delivery.message_id,
            KEPT_FOR.days,
            refusal,
        )


def signed(message_id: str, body: bytes, now: datetime, keys: Sequence[bytes]) -> Mapping[str, str]:
    """Return the headers of a request: its id, its time, and one signature for each key."""
    own_id = f"msg_{digest_id(message_id)}"  # an id must hold no full stop: it ends there
    time = str(int(now.timestamp()))
    text = b".".join((own_id.encode(), time.encode(), body))
    digests = (hmac.digest(key, text, hashlib.sha256) for key in keys)
    signatures = (f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return {
        "content-type": "application/json",
        "webhook-id": own_id,
        "webhook-timestamp": time,
        "webhook-signature": " ".join(signatures),
    }


def _first_at(delivery: Delivery, now: datetime) -> datetime:
    try:
        return parse_key_time(str(delivery.properties.get(FIRST_AT)))
    except ValueError:  # it was never put back
        return delivery.enqueued_at or now
