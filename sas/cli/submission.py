"""Send orders and follow them to their end: the work of ``sas submit``."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sas.adapters.endpoints import token_credential
from sas.cli import screen, system
from sas.client import FollowError, InvalidOrderError, OrdersClient, SubmitError
from sas.codec.external import Notification, notice_of
from sas.codec.record import to_line
from sas.config import read_order_bytes_max
from sas.domain.queues import Queues
from sas.domain.texts import visible
from sas.operate.errors import ServiceUnavailableError, UsageError
from sas.operate.submissions import InputError, InputItem, SubmissionTracker, read_ahead

SEND_ORDERS_MAX = 500
"""Orders that are given to the client in one call."""
WAIT_REPORT_EVERY_S = 60.0
"""The shortest time between two lines that say that Service Bus does not answer."""


@dataclass(kw_only=True)
class SubmitRun:
    """Orders to submit, and what to print of them. ``quiet_s`` is how long to wait for news."""

    items: Iterator[InputItem]
    reply_queue: str
    follow: bool
    as_json: bool
    urgent: bool
    quiet_s: float

    def __post_init__(self) -> None:
        self.tracker = SubmissionTracker()
        self._quiet = False
        self._tell: Any = None

    async def work(self, connected: system.LiveSystem) -> int:
        """Submit orders, follow them, print the summary, and return the exit code.

        There is no summary after an error before the first order was sent.

        Raises:
            UsageError: the input or the connection cannot be used.
            ServiceUnavailableError: Service Bus did not answer, or refused the call.
        """
        connected.waits_for = "Service Bus"
        # On a terminal, the notifications themselves are the progress.
        has_bar = not (self.follow and screen.is_terminal())
        text = "orders that have ended" if self.follow else "orders sent"
        try:
            with screen.progress(text) if has_bar else nullcontext() as self._tell:
                async with self._client(connected.queues) as client:
                    connected.waits_for = "orders to send, or for their notifications"
                    await self._send_and_follow(client)
        except asyncio.CancelledError:
            screen.complain("interrupted: the orders that were sent are still processed")
            self._summarise()
            raise
        except (InputError, SubmitError, FollowError) as error:
            if self.tracker.submitted:  # otherwise the error says that nothing was sent
                self._summarise()
            if isinstance(error, InputError):
                raise UsageError(f"{error}. {self._sent_before()}") from None
            advice = self._sent_before()
            if isinstance(error, FollowError) and self.tracker.submitted:
                advice = (
                    "The orders that were sent are still processed: sas list shows them, and to "
                    "submit them again with --follow is safe."
                )
            raise ServiceUnavailableError(f"{error} {advice}") from None
        self._summarise()
        return 0 if self.tracker.went_well else 1

    async def _send_and_follow(self, client: OrdersClient) -> None:
        """Send orders and follow them at the same time. A failure of either task ends both."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send(client))
                if self.follow:
                    tasks.create_task(self._follow(client))
        except* Exception as group:  # noqa: BLE001  the first says why
            raise group.exceptions[0] from None

    async def _send(self, client: OrdersClient) -> None:
        async with aclosing(read_ahead(self.items, SEND_ORDERS_MAX)) as batches:
            async for items in batches:
                await self._send_batch(client, items)
        self.tracker.sending_ended()

    async def _send_batch(self, client: OrdersClient, items: Sequence[InputItem]) -> None:
        submitted_before = self.tracker.submitted

        def on_sent(count: int) -> None:
            self.tracker.submitted = submitted_before + count
            self._progress()

        if self.follow:
            for item in items:
                self.tracker.expect(item.order.order_id)
        try:
            await client.submit_many((item.order for item in items), on_sent)
        except InvalidOrderError as error:
            raise InputError(items[error.index].line, str(error)) from None
        finally:
            for item in items[self.tracker.submitted - submitted_before :]:
                self.tracker.forget(item.order.order_id)

    async def _follow(self, client: OrdersClient) -> None:
        async with aclosing(client.follow(until=self._is_over)) as notifications:
            async for notification in notifications:
                if self.tracker.note(notification):
                    screen.say(line_of(notification, as_json=self.as_json))
                self._progress()

    def _is_over(self) -> bool:
        """Return whether all orders have ended, or no notification came for too long."""
        self._quiet = self.tracker.all_sent and self.tracker.quiet_s() >= self.quiet_s
        return self.tracker.finished or self._quiet

    def _progress(self) -> None:
        if self._tell is not None and self.follow:
            self._tell(self.tracker.ends.total(), self.tracker.submitted)
        elif self._tell is not None:
            self._tell(self.tracker.submitted)

    def _sent_before(self) -> str:
        """Return in a sentence what was sent before the failure."""
        if not self.tracker.submitted:
            return "Nothing was sent."
        subject = screen.count(self.tracker.submitted, "order")
        verb = "was" if self.tracker.submitted == 1 else "were"
        return f"{subject} {verb} sent before; to send one again is safe."

    def _summarise(self) -> None:
        """Print the counts, and what the operator must know besides."""
        tracker = self.tracker
        counts = tracker.counts() if self.follow else {"submitted": tracker.submitted}
        if self.as_json:
            screen.say(to_line({"summary": counts}))
        else:
            phrases = (f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
            screen.say(", ".join(phrases))
        if tracker.others:
            screen.complain(
                f"sas: {tracker.others:,} notifications of other orders were removed from "
                f"{self.reply_queue}: give a response queue of your own with --reply-queue"
            )
        if self._quiet and tracker.waiting:
            examples = list(islice(tracker.waiting, 3))
            if len(tracker.waiting) > len(examples):
                examples.append("...")
            screen.complain(
                f"sas: no notification came for {self.quiet_s:g} s and some orders have not ended "
                f"({', '.join(examples)}): look at sas messages list alerts and sas list, or wait "
                "longer with --patience"
            )

    @asynccontextmanager
    async def _client(self, queues: Queues) -> AsyncIterator[OrdersClient]:
        """Open the client as long as this context lasts.

        Raises:
            UsageError: the environment names no namespace, or one that cannot exist.
        """
        endpoint = system.read_bus(os.environ)
        client_log, reporter = logging.getLogger("sas.client"), _WaitReporter()
        async with AsyncExitStack() as stack:
            client_log.addHandler(reporter)
            stack.callback(client_log.removeHandler, reporter)
            address: dict[str, Any] = {"connection_string": endpoint.connection_string}
            if endpoint.address is not None:
                credential = await stack.enter_async_context(token_credential())
                address = {"fully_qualified_namespace": endpoint.address, "credential": credential}
            try:
                client = OrdersClient(
                    reply_queue=self.reply_queue,
                    queues=queues.urgent if self.urgent else queues,
                    order_bytes_max=read_order_bytes_max(os.environ),
                    **address,
                )
            except ValueError as error:
                raise UsageError(system.unreadable(error)) from None
            yield await stack.enter_async_context(client)


def line_of(notification: Notification, *, as_json: bool) -> str:
    """Return a notification for people, or for programs: the CloudEvent on one line."""
    if as_json:
        return to_line(notification)
    data = notification.data
    parts = [f"{data.order_id or '(no order id)':<20} {notice_of(notification.type):<14}"]
    if data.step:
        parts.append(data.step)
    if data.duplicate:
        parts.append(f"again: it is {data.state}")
    if data.error:
        parts.append(f"{data.error.code}: {data.error.message}")
    if data.awaits:
        undoing = data.awaits == "undo"
        parts.append("(being undone)" if undoing else "(waiting for an operator)")
    return visible(" ".join(parts).rstrip())


class _WaitReporter(logging.Handler):
    """Print the client's warnings that it waits, at most one a minute.

    The client sends and receives at the same time, so an outage causes two warnings or more.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._reported_at = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() - self._reported_at >= WAIT_REPORT_EVERY_S:
            self._reported_at = time.monotonic()
            screen.complain(f"sas: {record.getMessage()}")
