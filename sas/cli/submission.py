"""Sending orders and following them to their end: what ``sas submit`` does.

Only counts and the ids of orders that have not ended are held in memory.
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
from sas.cli.reading import Feed, InputError, Item
from sas.client import FollowError, InvalidOrderError, OrdersClient, SubmitError, is_end
from sas.codec import external
from sas.codec.external import Notification, event_type, notice_of
from sas.domain.messages import Notice
from sas.domain.order import OrderState
from sas.operate.errors import UnavailableError, UsageError

SEND_ORDERS_MAX = 500
"""Orders handed to the client at once."""
SAID_EVERY_S = 60.0
"""Shortest time between two lines that say that Service Bus does not answer."""
SEEN_MAX = 10_000
"""Notifications remembered, to count a repeated one once; and orders that ended."""

K = TypeVar("K")
_REJECTED = event_type(Notice.REJECTED)
_RECEIVED = event_type(Notice.RECEIVED)
_END_OF_STATE = {
    OrderState.PROCESSED.value: Notice.COMPLETED.value,
    OrderState.ERROR.value: Notice.FAILED.value,
    OrderState.COMPENSATED.value: Notice.UNDONE.value,
    OrderState.REJECTED.value: Notice.REJECTED.value,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to submit, where, and what to print."""

    connection: Connection
    items: Iterator[Item]
    follow: bool
    json: bool
    quiet_s: float
    urgent: bool


async def submit_and_follow(plan: Plan) -> int:
    """Submit, follow, and print the summary unless nothing was sent; return the exit code.

    Raises:
        UsageError: the input or the connection cannot be used.
        UnavailableError: Service Bus refused or did not answer.
    """
    run = _Run(plan)
    try:
        async with _client(plan.connection, urgent=plan.urgent) as client:
            with run.progress.shown(), _waits_told():
                await run.everything(client)
    except asyncio.CancelledError:
        output.complain("interrupted: the orders that were sent are still processed")
        run.summarise()
        raise
    except (InputError, SubmitError, FollowError) as failed:
        if run.tally.submitted:  # else the error says that nothing was sent
            run.summarise()
        if isinstance(failed, InputError):
            raise UsageError(f"{failed}. {run.sent_before()}") from None
        after = run.sent_to_follow() if isinstance(failed, FollowError) else run.sent_before()
        raise UnavailableError(f"{failed} {after}") from None
    run.summarise()
    return 0 if run.tally.went_well else 1


class _Run:
    def __init__(self, plan: Plan) -> None:
        self.tally = Tally()
        self._plan = plan
        self._began = time.monotonic()
        self._quiet = False
        self.progress = output.Progress(self._describe)

    async def everything(self, client: OrdersClient) -> None:
        """Send and follow at the same time; a failure of one ends both."""
        feed = Feed(self._plan.items)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._send(client, feed))
                if self._plan.follow:
                    both.create_task(self._follow(client))
        except* (InputError, SubmitError, FollowError, BrokenPipeError, OutputError) as several:
            raise several.exceptions[0] from None
        finally:
            feed.close()

    async def _send(self, client: OrdersClient, feed: Feed) -> None:
        while items := await feed.take(SEND_ORDERS_MAX):
            await self._send_some(client, items)
        self.tally.sending_ended()

    async def _send_some(self, client: OrdersClient, items: list[Item]) -> None:
        before = self.tally.submitted

        def sent(count: int) -> None:
            self.tally.submitted = before + count
            self.progress()

        if self._plan.follow:
            for item in items:
                self.tally.expect(item.order.order_id)
        try:
            await client.submit_many((item.order for item in items), sent)
        except InvalidOrderError as wrong:
            raise InputError(items[wrong.index].line, str(wrong)) from None
        finally:
            for item in items[self.tally.submitted - before :]:
                self.tally.forget(item.order.order_id)

    async def _follow(self, client: OrdersClient) -> None:
        async with aclosing(client.follow(until=self._enough)) as notifications:
            async for notification in notifications:
                if self.tally.note(notification):
                    output.say(as_json(notification) if self._plan.json else as_line(notification))
                self.progress()

    def _enough(self) -> bool:
        self.progress()
        self._quiet = self.tally.all_sent and self.tally.quiet_s() >= self._plan.quiet_s
        return self.tally.finished or self._quiet

    def _describe(self) -> str:
        tally = self.tally
        parts = [f"submitted {tally.submitted:,}"]
        if self._plan.follow:
            parts.append(f"ended {tally.ends.total():,}")
            if bad := tally.not_completed:
                parts.append(f"not completed {bad:,}")
        parts.append(f"{time.monotonic() - self._began:.0f} s")
        return ", ".join(parts)

    def sent_before(self) -> str:
        """Say what was sent before the failure."""
        count = self.tally.submitted
        if not count:
            return "Nothing was sent."
        were = "1 order was" if count == 1 else f"{count:,} orders were"
        return f"{were} sent before; to send one again is safe."

    def sent_to_follow(self) -> str:
        """Say what becomes of the orders that cannot be followed any longer."""
        if not self.tally.submitted:
            return self.sent_before()
        return (
            "The orders that were sent are still processed: sas list shows them, and to "
            "submit them again with --follow is safe."
        )

    def summarise(self) -> None:
        """Print the counts, and what to do about orders that have not ended."""
        counts = self.tally.counts() if self._plan.follow else {"submitted": self.tally.submitted}
        if self._plan.json:
            output.say(json.dumps({"summary": counts}))
        else:
            said = (f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
            output.say(", ".join(said))
        if self._quiet and self.tally.waiting:
            some = ", ".join(output.one_line(one) for one in islice(self.tally.waiting, 3))
            more = ", ..." if len(self.tally.waiting) > 3 else ""
            output.complain(
                f"sas: no notification came for {self._plan.quiet_s:g} s and some orders have "
                f"not ended ({some}{more}): look at operator-alerts and sas list, or wait longer "
                "with --patience"
            )


class _Waits(logging.Handler):
    """Prints why the client waits, once a minute: it sends and receives at the same time."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said_at: float | None = None

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if self._said_at is None or now - self._said_at >= SAID_EVERY_S:
            self._said_at = now
            output.complain(f"sas: {output.one_line(record.getMessage())}")


@contextmanager
def _waits_told() -> Iterator[None]:
    """Print why the client waits, as long as this lasts; what it logs later is of no use."""
    client_log, waits = logging.getLogger("sas.client"), _Waits()
    client_log.addHandler(logging.NullHandler())  # or Python itself prints it
    client_log.addHandler(waits)
    try:
        yield
    finally:
        client_log.removeHandler(waits)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What became of the orders of one submission: counts, and the ids that have not ended.

    An id may be submitted several times (``waiting`` counts). Each repeat gets its own answer,
    before or after the order's end: *received* as a duplicate; *rejected* if its content differs;
    the same *received* once more if its submission_id is the same.
    """

    submitted: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    others: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    all_sent: bool = False
    heard_at: float = field(default_factory=time.monotonic)
    _ended: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _over: set[str] = field(default_factory=set)
    _seen: OrderedDict[tuple[str, str], None] = field(default_factory=OrderedDict)

    def expect(self, order_id: str) -> None:
        """Expect an order that is about to be sent: its answer may come before the send returns."""
        self.waiting[order_id] = self.waiting.get(order_id, 0) + 1

    def forget(self, order_id: str) -> None:
        """Forget an order that was not sent, or one of its submissions that was answered."""
        left = self.waiting.pop(order_id, 0) - 1
        if left > 0:
            self.waiting[order_id] = left
        else:
            self._over.discard(order_id)
            _keep(self._ended, order_id)

    def sending_ended(self) -> None:
        """Note that nothing more will be submitted: from now on silence counts."""
        self.all_sent = True
        self.heard_at = time.monotonic()

    @property
    def finished(self) -> bool:
        """Whether everything was sent and has ended."""
        return self.all_sent and not self.waiting

    @property
    def not_completed(self) -> int:
        """How many orders ended, but not completed."""
        return self.ends.total() - self.ends[Notice.COMPLETED.value]

    @property
    def went_well(self) -> bool:
        """Whether every order has completed."""
        return not (self.not_completed or self.waiting)

    def quiet_s(self) -> float:
        """Return for how many seconds no notification came."""
        return time.monotonic() - self.heard_at

    def note(self, notification: Notification) -> bool:
        """Count a notification; False if it has been counted before."""
        self.heard_at = time.monotonic()
        order_id = notification.data.order_id
        repeats = self.waiting.get(order_id, 0) > 1 or order_id in self._over
        key = (notification.source, notification.id)
        known = key in self._seen
        _keep(self._seen, key)
        if order_id not in self.waiting:
            # A step that ran beside the failed one is notified after the order's end.
            self.others += not known and order_id not in self._ended
        elif repeats and notification.type == _RECEIVED and (known or notification.data.duplicate):
            self.repeated += 1
            self.forget(order_id)
        elif known:
            return False
        elif notification.type == _REJECTED or (
            is_end(notification) and order_id not in self._over
        ):
            self.ends[_end_of(notification)] += 1
            if notification.type != _REJECTED:
                self._over.add(order_id)
            self.forget(order_id)
        return not known

    def counts(self) -> dict[str, int]:
        """Return the summary; the last two counts only if they are not 0."""
        extra = {"repeated": self.repeated, "of_other_orders": self.others}
        return {
            "submitted": self.submitted,
            **{end: self.ends[end] for end in _END_OF_STATE.values()},
            "unfinished": sum(self.waiting.values()),
            **{name: count for name, count in extra.items() if count},
        }


def _keep(latest: OrderedDict[K, None], key: K) -> None:
    """Remember a key as the latest; forget the oldest if there are too many."""
    latest[key] = None
    latest.move_to_end(key)
    if len(latest) > SEEN_MAX:
        latest.popitem(last=False)


def _end_of(notification: Notification) -> str:
    """Return how an order ended. The answer to a repeat has the state, not the end."""
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
async def _client(where: Connection, *, urgent: bool) -> AsyncIterator[OrdersClient]:
    """Open the client as long as this lasts.

    Raises:
        UsageError: the connection string cannot be read.
    """
    async with AsyncExitStack() as stack:
        address: dict[str, Any] = {"connection_string": where.endpoint.connection_string}
        if where.endpoint.address is not None:
            from sas.adapters.endpoints import token_credential  # noqa: PLC0415  # slow to import

            address = {
                "fully_qualified_namespace": where.endpoint.address,
                "credential": await stack.enter_async_context(token_credential()),
            }
        try:
            client = OrdersClient(
                reply_queue=where.reply_queue,
                queues=where.queues.urgent if urgent else where.queues,
                order_bytes_max=where.order_bytes_max,
                **address,
            )
        except ValueError as wrong:
            raise UsageError(unreadable(wrong)) from None
        yield await stack.enter_async_context(client)
