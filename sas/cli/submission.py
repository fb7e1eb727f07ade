"""Send orders and follow them to their end: the work of ``sas submit``.

The input can be any length. Memory holds the ids of orders that have not ended, and otherwise only
counts and limited numbers of orders, ids and notifications.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from sas.cli import output
from sas.cli.arguments import Connection, unreadable
from sas.cli.output import OutputError
from sas.cli.reading import Feed, InputError, InputItem
from sas.client import FollowError, InvalidOrderError, OrdersClient, SubmitError, is_end
from sas.codec import external
from sas.codec.external import Notification, event_type, notice_of
from sas.domain.messages import Notice
from sas.domain.order import OrderState
from sas.operate.errors import ServiceUnavailableError, UsageError

SEND_ORDERS_MAX = 500
"""Orders that are given to the client in one call."""
WAIT_REPORT_EVERY_S = 60.0
"""The shortest time between two lines that say that Service Bus does not answer."""
REMEMBERED_MAX = 10_000
"""How many notifications are remembered, so that a repeated one counts once.

As many ids of ended orders are remembered.
"""

KeyT = TypeVar("KeyT")
_REJECTED = event_type(Notice.REJECTED)
_RECEIVED = event_type(Notice.RECEIVED)
_END_OF_STATE = {
    OrderState.PROCESSED.value: Notice.COMPLETED.value,
    OrderState.ERROR.value: Notice.FAILED.value,
    OrderState.COMPENSATED.value: Notice.UNDONE.value,
    OrderState.REJECTED.value: Notice.REJECTED.value,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """What to submit, where, and what to print."""

    connection: Connection
    items: Iterator[InputItem]
    follow: bool
    json: bool
    quiet_s: float
    urgent: bool


async def submit_and_follow(options: SubmitOptions) -> int:
    """Submit orders, follow them, print the summary, and return the exit code.

    There is no summary after an error before the first order was sent.

    Raises:
        UsageError: the input or the connection cannot be used.
        ServiceUnavailableError: Service Bus did not answer, or refused the call.
    """
    run = _Run(options)
    try:
        async with _client(options.connection, urgent=options.urgent) as client:
            with run.progress.shown(), _reports_of_waits():
                await run.send_and_follow(client)
    except asyncio.CancelledError:
        output.complain("interrupted: the orders that were sent are still processed")
        run.summarise()
        raise
    except (InputError, SubmitError, FollowError) as error:
        if run.tracker.submitted:  # otherwise the error says that nothing was sent
            run.summarise()
        if isinstance(error, InputError):
            raise UsageError(f"{error}. {run.sent_before()}") from None
        advice = run.sent_to_follow() if isinstance(error, FollowError) else run.sent_before()
        raise ServiceUnavailableError(f"{error} {advice}") from None
    run.summarise()
    return 0 if run.tracker.went_well else 1


class _Run:
    def __init__(self, options: SubmitOptions) -> None:
        self.tracker = SubmissionTracker()
        self._options = options
        self._began_at = time.monotonic()
        self._quiet = False
        self.progress = output.ProgressLine(self._describe)

    async def send_and_follow(self, client: OrdersClient) -> None:
        """Send orders and follow them at the same time. A failure of either task ends both."""
        feed = Feed(self._options.items)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send(client, feed))
                if self._options.follow:
                    tasks.create_task(self._follow(client))
        except* (InputError, SubmitError, FollowError, BrokenPipeError, OutputError) as group:
            raise group.exceptions[0] from None
        finally:
            feed.close()

    async def _send(self, client: OrdersClient, feed: Feed) -> None:
        while items := await feed.take(SEND_ORDERS_MAX):
            await self._send_batch(client, items)
        self.tracker.sending_ended()

    async def _send_batch(self, client: OrdersClient, items: list[InputItem]) -> None:
        submitted_before = self.tracker.submitted

        def on_sent(count: int) -> None:
            self.tracker.submitted = submitted_before + count
            self.progress()

        if self._options.follow:
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
                    line = as_json(notification) if self._options.json else as_line(notification)
                    output.say(line)
                self.progress()

    def _is_over(self) -> bool:
        """Return whether all orders have ended, or no notification came for too long."""
        self.progress()
        self._quiet = self.tracker.all_sent and self.tracker.quiet_s() >= self._options.quiet_s
        return self.tracker.finished or self._quiet

    def _describe(self) -> str:
        tracker = self.tracker
        parts = [f"submitted {tracker.submitted:,}"]
        if self._options.follow:
            parts.append(f"ended {tracker.ends.total():,}")
            if failures := tracker.not_completed:
                parts.append(f"not completed {failures:,}")
        parts.append(f"{time.monotonic() - self._began_at:.0f} s")
        return ", ".join(parts)

    def sent_before(self) -> str:
        """Return in a sentence what was sent before the failure."""
        count = self.tracker.submitted
        if not count:
            return "Nothing was sent."
        subject = "1 order was" if count == 1 else f"{count:,} orders were"
        return f"{subject} sent before; to send one again is safe."

    def sent_to_follow(self) -> str:
        """Return in a sentence what happens to the orders that are not followed any longer."""
        if not self.tracker.submitted:
            return self.sent_before()
        return (
            "The orders that were sent are still processed: sas list shows them, and to "
            "submit them again with --follow is safe."
        )

    def summarise(self) -> None:
        """Print the counts. If no notification came for too long, say what to do."""
        tracker = self.tracker
        counts = tracker.counts() if self._options.follow else {"submitted": tracker.submitted}
        if self._options.json:
            output.say(json.dumps({"summary": counts}))
        else:
            phrases = (f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
            output.say(", ".join(phrases))
        if self._quiet and self.tracker.waiting:
            examples = [output.one_line(order_id) for order_id in islice(self.tracker.waiting, 3)]
            if len(self.tracker.waiting) > len(examples):
                examples.append("...")
            output.complain(
                f"sas: no notification came for {self._options.quiet_s:g} s and some orders have "
                f"not ended ({', '.join(examples)}): look at operator-alerts and sas list, or wait "
                "longer with --patience"
            )


class _WaitReporter(logging.Handler):
    """Print the client's warnings that it waits, at most one a minute.

    The client sends and receives at the same time, so an outage causes two warnings or more.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._reported_at: float | None = None

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if self._reported_at is None or now - self._reported_at >= WAIT_REPORT_EVERY_S:
            self._reported_at = now
            output.complain(f"sas: {output.one_line(record.getMessage())}")


@contextmanager
def _reports_of_waits() -> Iterator[None]:
    """Print why the client waits, as long as this context lasts."""
    client_log = logging.getLogger("sas.client")
    reporter = _WaitReporter()
    # This handler stays after the context. Without any handler, Python prints warnings itself.
    client_log.addHandler(logging.NullHandler())
    client_log.addHandler(reporter)
    try:
        yield
    finally:
        client_log.removeHandler(reporter)


@dataclass(slots=True, kw_only=True)
class SubmissionTracker:
    """The progress of ``sas submit``: how many orders ended, how they ended, and which have not.

    The input may have the same order several times. The first submission waits for the order's end.
    Each repeat waits for its answer, which may come before or after the order's end. The answer to
    a repeat is one of these notifications:

    - *received* as a duplicate;
    - *rejected*, because the content of the repeat differs;
    - the first *received* once more, because the repeat has the same submission_id.

    ``waiting`` has the number of submissions that wait, by OrderID. ``_ended`` remembers the ids of
    the last orders that do not wait any more. ``_ended_waiting`` has the ids of orders that ended
    while repeats still wait. ``_seen`` remembers the last notifications. ``others`` counts
    notifications of orders that this command did not send.
    """

    submitted: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    others: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    all_sent: bool = False
    heard_at: float = field(default_factory=time.monotonic)
    _ended: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _ended_waiting: set[str] = field(default_factory=set)
    _seen: OrderedDict[tuple[str, str], None] = field(default_factory=OrderedDict)

    def expect(self, order_id: str) -> None:
        """Expect notifications of an order. Call this before sending: they may come at once."""
        self.waiting[order_id] = self.waiting.get(order_id, 0) + 1

    def forget(self, order_id: str) -> None:
        """Forget a submission that was not sent, or that does not wait any more."""
        count = self.waiting.pop(order_id, 0) - 1
        if count > 0:
            self.waiting[order_id] = count
        else:
            self._ended_waiting.discard(order_id)
            _keep(self._ended, order_id)

    def sending_ended(self) -> None:
        """Note that all orders are sent. The time without notifications counts from now on."""
        self.all_sent = True
        self.heard_at = time.monotonic()

    @property
    def finished(self) -> bool:
        """Whether all orders were sent and have ended."""
        return self.all_sent and not self.waiting

    @property
    def not_completed(self) -> int:
        """How many orders ended in another way than *completed*."""
        return self.ends.total() - self.ends[Notice.COMPLETED.value]

    @property
    def went_well(self) -> bool:
        """Whether no order waits, and none ended in another way than *completed*."""
        return not (self.not_completed or self.waiting)

    def quiet_s(self) -> float:
        """Return how many seconds ago the last notification came, or the last order was sent."""
        return time.monotonic() - self.heard_at

    def note(self, notification: Notification) -> bool:
        """Count a notification. Return whether it is the first one with its source and id."""
        self.heard_at = time.monotonic()
        order_id = notification.data.order_id
        key = (notification.source, notification.id)
        is_known = key in self._seen
        _keep(self._seen, key)
        has_repeats = self.waiting.get(order_id, 0) > 1 or order_id in self._ended_waiting
        is_answer_to_repeat = (
            has_repeats
            and notification.type == _RECEIVED
            and (is_known or notification.data.duplicate)
        )
        if order_id not in self.waiting:
            # The order has ended, or was not sent by this command. A notification after the end is
            # normal: a step that ran in parallel with a failed step may complete later.
            self.others += not is_known and order_id not in self._ended
        elif is_answer_to_repeat:
            self.repeated += 1
            self.forget(order_id)
        elif is_known:
            return False
        elif notification.type == _REJECTED or (
            is_end(notification) and order_id not in self._ended_waiting
        ):
            self.ends[_end_of(notification)] += 1
            if notification.type != _REJECTED:
                self._ended_waiting.add(order_id)
            self.forget(order_id)
        return not is_known

    def counts(self) -> dict[str, int]:
        """Return the counts of the summary. The last two are left out if they are 0."""
        extra = {"repeated": self.repeated, "of_other_orders": self.others}
        return {
            "submitted": self.submitted,
            **{end: self.ends[end] for end in _END_OF_STATE.values()},
            "unfinished": sum(self.waiting.values()),
            **{name: count for name, count in extra.items() if count},
        }


def _keep(latest: OrderedDict[KeyT, None], key: KeyT) -> None:
    """Remember a key as the latest. If there are too many keys, forget the oldest."""
    latest[key] = None
    latest.move_to_end(key)
    if len(latest) > REMEMBERED_MAX:
        latest.popitem(last=False)


def _end_of(notification: Notification) -> str:
    """Return how an order ended.

    Its end may be known only from the answer to a repeat, which has the state of the order.
    """
    if notification.type == _RECEIVED:
        return _END_OF_STATE.get(notification.data.state, Notice.FAILED.value)
    return notice_of(notification.type)


def as_line(notification: Notification) -> str:
    """Return a notification for people."""
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
    return output.one_line(" ".join(parts).rstrip())


def as_json(notification: Notification) -> str:
    """Return a notification for programs: the CloudEvent on one line."""
    return external.encode(notification).decode()


@asynccontextmanager
async def _client(connection: Connection, *, urgent: bool) -> AsyncIterator[OrdersClient]:
    """Open the client as long as this context lasts.

    Raises:
        UsageError: the connection string cannot be read.
    """
    async with AsyncExitStack() as stack:
        address: dict[str, Any] = {"connection_string": connection.endpoint.connection_string}
        if connection.endpoint.address is not None:
            from sas.adapters.endpoints import token_credential  # noqa: PLC0415  # slow to import

            address = {
                "fully_qualified_namespace": connection.endpoint.address,
                "credential": await stack.enter_async_context(token_credential()),
            }
        try:
            client = OrdersClient(
                reply_queue=connection.reply_queue,
                queues=connection.queues.urgent if urgent else connection.queues,
                order_bytes_max=connection.order_bytes_max,
                **address,
            )
        except ValueError as error:
            raise UsageError(unreadable(error)) from None
        yield await stack.enter_async_context(client)
