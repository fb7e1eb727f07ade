"""Sending commands, and waiting for the journal to show what became of them.

A command that is carried out leaves its cause in the journal. One that is refused leaves
nothing there: that the order has gone past the seq it names says so, or else the scheduler's
own word, which it keeps for a while.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sas.adapters.endpoints import Endpoint
from sas.cli.errors import TroubleError, UsageError
from sas.cli.intent import Intent
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.domain.ids import cause_of
from sas.domain.messages import JournalEntry, JournalWord
from sas.domain.order import Order
from sas.domain.queues import Queues, lane
from sas.engine.refusals import CommandRefusals
from sas.ports import BusUnavailableError, Message, MessageBus, StateStore, UndeliverableError

SEND_MAX = 100
"""Commands handed to the bus at once."""
AT_ONCE = 8
POLL_S = 0.25
GONE = "it is not there any more (a finished order is purged in the end)"


@dataclass(frozen=True, slots=True)
class Asked:
    """One command about one order: ``seq`` is what was seen of it (None: whatever it is);
    ``urgent`` is the order's lane, which the command takes too.
    """

    order_id: str
    seq: int | None
    urgent: bool = False
    command_id: str = field(default_factory=lambda: f"sas-{uuid.uuid4().hex}")


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a command: the journal row it led to, or why there is none."""

    asked: Asked
    entry: JournalEntry | None = None
    refused: str = ""

    @property
    def carried_out(self) -> bool:
        """Whether it was."""
        return self.entry is not None and self.entry.what is not JournalWord.FENCED


def message(asked: Asked, intent: Intent, queues: Queues) -> Message:
    """Return a command as it goes on the scheduler's queue, in the lane of its order."""
    command = CommandMessage(
        id=asked.command_id,
        order_id=asked.order_id,
        verb=intent.verb.value,
        by=intent.by,
        seq=asked.seq,
        step=intent.step,
        input=internal.raw(intent.input),
    )
    queue = lane(queues.scheduler, urgent=asked.urgent)
    return Message(queue, asked.command_id, internal.encode(command))


@asynccontextmanager
async def opened(endpoint: Endpoint) -> AsyncIterator[MessageBus]:
    """Open the bus for as long as this lasts.

    Raises:
        UsageError: the connection string cannot be read.
    """
    from sas.adapters.servicebus import ServiceBus  # noqa: PLC0415  # slow to import

    try:
        bus = ServiceBus.connect(endpoint)
    except ValueError as wrong:
        raise UsageError(
            f"the connection string cannot be read: {wrong} It looks like "
            "Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=...;"
            "SharedAccessKey=..."
        ) from None
    try:
        yield bus
    finally:
        await bus.close()


async def send(
    bus: MessageBus,
    asked: Sequence[Asked],
    intent: Intent,
    queues: Queues,
    going: Callable[[int], None] = lambda _count: None,
) -> None:
    """Send the commands; ``going`` is told, before each batch, how many may be sent after it.

    Raises:
        TroubleError: saying how many were sent before.
    """
    lanes = sorted(asked, key=lambda one: not one.urgent)  # one batch a queue, urgent ones first
    for start in range(0, len(asked), SEND_MAX):
        some = [message(one, intent, queues) for one in lanes[start : start + SEND_MAX]]
        going(start + len(some))
        try:
            await bus.send(some)
        except (BusUnavailableError, UndeliverableError) as failed:
            raise TroubleError(
                f"{failed} {start:,} of {len(asked):,} commands were sent before it; asking again "
                "is safe, an order that has moved on refuses."
            ) from None


async def wait(
    store: StateStore, asked: Sequence[Asked], queues: Queues, patience_s: float
) -> list[Ended]:
    """Return what became of each, as far as is known once nothing came for ``patience_s``."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def look(one: Asked) -> Ended:
        async with gate:
            return await look_for(store, one, queues)

    ended: dict[str, Ended] = {}
    left, heard_at = list(asked), time.monotonic()
    while left:
        for one in await asyncio.gather(*(look(one) for one in left)):
            if one.entry is not None or one.refused:
                ended[one.asked.command_id] = one
                heard_at = time.monotonic()
        left = [one for one in left if one.command_id not in ended]
        if left and time.monotonic() - heard_at >= patience_s:
            break
        await asyncio.sleep(POLL_S if left else 0)
    return [ended.get(one.command_id, Ended(one)) for one in asked]


async def look_for(store: StateStore, asked: Asked, queues: Queues) -> Ended:
    """Return what became of one command so far."""
    cause = cause_of(queues.scheduler, asked.command_id)
    entry = await store.recorded(asked.order_id, cause)
    if entry is not None:
        return Ended(asked, entry)
    order = await store.load(asked.order_id)
    if order is not None and asked.seq in {order.seq, None}:
        return Ended(asked, None, await CommandRefusals(store).reason(asked.command_id))
    if asked.seq is None:
        return Ended(asked, None, GONE)
    # It moved on: by our command, or before it came. The cause looked for now tells which.
    entry = await store.recorded(asked.order_id, cause)
    return Ended(asked, entry, "" if entry else await overtaken(store, order, asked.seq))


async def overtaken(store: StateStore, order: Order | None, seq: int) -> str:
    """Return what changed since an operator saw an order, in one sentence."""
    if order is None:
        return GONE
    if order.seq < seq:
        return (
            f"you say seq {seq} and it is at {order.seq} ({order.process_state.value}) yet: look "
            "which you saw"
        )
    since = [one for one in await store.journal(order.order_id) if one.seq > seq]
    changes = ", ".join(f"{one.seq} {one.what} by {one.by}" for one in since[:5])
    more = ", ..." if len(since) > 5 else ""
    return (
        f"you saw seq {seq} and it is at {order.seq} ({order.process_state.value}); since then: "
        f"{changes or 'nothing'}{more}. Look at it again"
    )
