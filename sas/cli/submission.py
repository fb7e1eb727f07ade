"""Sending and following side by side: what ``sas submit`` does once it knows what to do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from sas.cli import output
from sas.cli.connection import Connection
from sas.cli.errors import OutputError, TroubleError, UsageError
from sas.cli.feed import Feed
from sas.cli.reading import InputError, Item
from sas.cli.tally import Tally
from sas.client import FollowError, InvalidOrderError, OrdersClient, SubmitError

SEND_ORDERS_MAX = 500
"""Orders handed to the client at once."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to submit, where, and how to tell of it."""

    connection: Connection
    items: Iterator[Item]
    follow: bool
    json: bool
    patience_s: float
    urgent: bool


async def submit_and_follow(plan: Plan) -> int:
    """Do it; return the exit code. The summary is printed whatever happens.

    Raises:
        UsageError: the input or the connection cannot be used.
        TroubleError: Service Bus refused or did not answer.
    """
    run = _Run(plan)
    try:
        async with _client(plan.connection, urgent=plan.urgent) as client:
            with run.progress.shown():
                await run.everything(client)
    except asyncio.CancelledError:
        output.complain("interrupted: orders that were sent go on without us")
        raise
    except InputError as wrong:
        raise UsageError(f"{wrong}. {run.sent_before()}") from None
    except (SubmitError, FollowError) as failed:
        raise TroubleError(f"{failed} {run.sent_before()}") from None
    finally:
        run.summarise()
    return 0 if run.tally.went_well else 1


class _Run:
    def __init__(self, plan: Plan) -> None:
        self.tally = Tally()
        self._plan = plan
        self._began = time.monotonic()
        self.progress = output.Progress(self._describe)

    async def everything(self, client: OrdersClient) -> None:
        """Send and follow side by side; whichever fails ends both."""
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
            async for told in notifications:
                if self.tally.note(told):
                    output.say(output.as_json(told) if self._plan.json else output.as_line(told))
                self.progress()

    def _enough(self) -> bool:
        self.progress()
        return self.tally.finished or (
            self.tally.all_sent and self.tally.silent_s() >= self._plan.patience_s
        )

    def _describe(self) -> str:
        tally = self.tally
        parts = [f"submitted {tally.submitted:,}"]
        if self._plan.follow:
            parts.append(f"ended {tally.ended:,}")
            if bad := tally.failed + tally.undone + tally.rejected:
                parts.append(f"of them not completed {bad:,}")
        parts.append(f"{time.monotonic() - self._began:.0f} s")
        return ", ".join(parts)

    def sent_before(self) -> str:
        """Say what was sent before something went wrong."""
        count = self.tally.submitted
        if not count:
            return "Nothing was sent."
        were = "1 order was" if count == 1 else f"{count:,} orders were"
        return f"{were} sent before it; sending one again is safe."

    def summarise(self) -> None:
        """Print the figures, and what to do about what has not ended."""
        counts = self.tally.counts() if self._plan.follow else {"submitted": self.tally.submitted}
        if self._plan.json:
            output.say(json.dumps({"summary": counts}))
        else:
            said = (f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
            output.say(", ".join(said))
        if self._plan.follow and self.tally.all_sent and self.tally.waiting:
            output.complain(
                f"sas: nothing came for {self._plan.patience_s:g} s and some orders have not ended "
                f"({_some(self.tally.waiting)}): look at operator-alerts, or wait longer with "
                "--patience"
            )


def _some(ids: dict[str, int]) -> str:
    first = ", ".join(output.one_line(order_id) for order_id, _ in zip(ids, range(3), strict=False))
    return first + (", ..." if len(ids) > 3 else "")


@asynccontextmanager
async def _client(where: Connection, *, urgent: bool) -> AsyncIterator[OrdersClient]:
    queues = where.queues.urgent if urgent else where.queues
    if where.namespace is None:
        try:
            client = OrdersClient(
                where.connection_string,
                reply_queue=where.reply_queue,
                queues=queues,
                order_bytes_max=where.order_bytes_max,
            )
        except ValueError as wrong:
            raise UsageError(
                f"the connection string cannot be read: {wrong} It looks like "
                "Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=...;"
                "SharedAccessKey=..."
            ) from None
        async with client:
            yield client
        return
    from sas.adapters.endpoints import token_credential  # noqa: PLC0415  # slow to import

    async with (
        token_credential() as credential,
        OrdersClient(
            reply_queue=where.reply_queue,
            fully_qualified_namespace=where.namespace,
            credential=credential,
            queues=queues,
            order_bytes_max=where.order_bytes_max,
        ) as client,
    ):
        yield client
