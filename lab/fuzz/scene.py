"""A system with an order in every state, and a world of its own for every input.

The actors, the codec and the table store are the real ones; queues, rows and clock are in memory.
The messages that were sent while the orders were made are the valid inputs of the doors.
"""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lab.fuzz.table import MemoryTable, Rows
from sas.adapters.tables.store import TableStore
from sas.bootstrap import Application, assemble
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.domain.queues import lane
from sas.domain.workflow import OnFailure, Step, Undo, Workflow, Workflows
from sas.engine.delivery import Delivery
from sas.engine.receiver import SOURCE
from sas.features.callbacks.codec import CallbackKeys, message_of, parse_body
from sas.ports import (
    AgentCall,
    AwaitCallback,
    Business,
    Message,
    RefusedError,
    StillRunning,
    UnavailableError,
    UndeliverableError,
    UnreadableError,
)
from sas.testing.bus import DEAD_LETTERS, MemoryBus, Queued
from sas.testing.clock import START, VirtualClock
from sas.testing.platform import QUEUES, REPLIES_TO, queue_rules
from sas.testing.settings import settings

ROOT = Path(__file__).parents[2]
AGENTS = ("backup", "courier", "payment", "stock")
BESIDE = "beside-1"
"""The order beside an input. It must complete, whatever the input is."""
SHARDS = 2
DELIVERIES_MAX = 400
KEYS = CallbackKeys(("a-key-for-the-fuzz-of-callbacks-1234",), "https://example.com/callbacks")
TIME = timedelta(minutes=10)
DOCUMENTED = (UnavailableError, UnreadableError)
"""What a reader of rows may raise. Nothing is lost: the host redelivers the message."""


class ScriptedAgent:
    """An agent that does what the content of the order says for its step.

    It refuses, waits for a callback, goes on later, or has a large result.
    """

    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def do(self, call: AgentCall) -> Any:
        """See ``Agent.do``."""
        match call.order.get(call.step) if isinstance(call.order, dict) else None:
            case "refuse":
                raise RefusedError("no-stock", "there is none left")
            case "outside":
                return self._awaits(call)
            case "later":
                return StillRunning(timedelta(minutes=1), "going on")
            case "large":
                return {"text": "x" * 50_000}
        return {"done": call.key}

    async def undo(self, call: AgentCall) -> Any:
        """See ``Agent.undo``."""
        if isinstance(call.order, dict) and call.order.get("undo") == call.step:
            return self._awaits(call)
        return None

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _awaits(self, call: AgentCall) -> AwaitCallback:
        self.tokens.append(call.callback(timedelta(hours=1)).token)
        return AwaitCallback(timedelta(hours=1), "waits for somebody outside")


def workflows() -> Workflows:
    """Return workflows with every kind of step."""
    undo = Undo(TIME)
    reserve = Step("reserve", agent="stock", time_allowed=TIME, undo=undo)
    pay = Step("pay", agent="payment", time_allowed=TIME, undo=undo, alternatives=("backup",))
    ship = Step("ship", agent="courier", time_allowed=TIME)
    held_steps = (reserve, Step("pay", agent="payment", time_allowed=TIME, after=(), undo=undo))
    return Workflows(
        [
            Workflow("order", version=1, steps=(reserve, pay, ship), on_failure=OnFailure.UNDO),
            Workflow(
                "order-held",
                version=1,
                steps=held_steps,
                on_failure=OnFailure.HOLD,
                notify_steps=True,
            ),
            Workflow("beside", version=1, steps=(reserve,)),
        ]
    )


def check(payload: bytes) -> None:
    """Refuse an order without lines, as a business would."""
    if not isinstance(json.loads(payload).get("lines"), list):
        raise ValueError("give lines")  # noqa: TRY004  a check raises ValueError


SERVICES = {name: ScriptedAgent() for name in AGENTS}
BUSINESS = Business(
    workflows=workflows(),
    agents=SERVICES,
    checks={("order", 1): check},
)
RULES = queue_rules(ROOT, AGENTS)


@dataclass(eq=False, kw_only=True)
class World:
    """One instance over some rows.

    If it does not run on, every message travels. ``errors`` are the undocumented exceptions,
    ``deliveries`` the messages that were delivered or drained so far.
    """

    rows: Rows
    now: datetime = START
    runs_on: bool = True
    odd: dict[str, Mapping[str, object]] = field(default_factory=dict)
    """Additional properties of a message, by its MessageId. Their values may have any type."""
    allowed: tuple[type[Exception], ...] = (UnavailableError,)
    deliveries: list[Queued] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    clock: VirtualClock = field(init=False)
    table: MemoryTable = field(init=False)
    bus: MemoryBus = field(init=False)
    app: Application = field(init=False)

    def __post_init__(self) -> None:
        random.seed(0)  # the jitter of retries
        self.clock, self.table = VirtualClock(self.now), MemoryTable(self.rows)
        self.bus = MemoryBus(self.clock)
        for queue, rules in RULES.items():
            self.bus.declare(queue, rules=rules)
        store = TableStore(self.table, shards=SHARDS)
        config = settings("fuzz:1", callback_keys=KEYS)
        self.app = assemble(store, self.bus, clock=self.clock, business=BUSINESS, settings=config)
        self.handlers = _handlers(self.app)
        if not self.runs_on:
            self.app.context.run_on.handlers = {}

    def send(self, queue: str, message_id: str, body: bytes, **properties: str) -> None:
        """Put a message on a queue."""
        self.bus._enqueue(Message(queue, message_id, body, properties=properties))

    def submit(self, order_id: str, workflow: str, *, urgent: bool = False, **content: Any) -> None:
        """Put an order on its queue."""
        body = {
            "order_id": order_id,
            "workflow": workflow,
            "reply_queue": REPLIES_TO,
            "correlation_id": f"c-{order_id}",
            "order": {"lines": [], **content},
        }
        self.send(lane(QUEUES.orders, urgent=urgent), f"m-{order_id}", json.dumps(body).encode())

    async def pump(self, *queues: str) -> None:
        """Deliver what can be received now, on all queues or only on these ones."""
        names = [name for name in self.handlers if not queues or name.startswith(queues)]
        for _ in range(DELIVERIES_MAX):
            busy = (name for name in names if self.bus.queues[name].waiting)
            queued = next(filter(None, map(self.bus.receive, busy)), None)
            if queued is None:
                return
            await self._deliver(queued)
        self.errors.append(f"there are messages left after {DELIVERIES_MAX} deliveries")

    async def _deliver(self, queued: Queued) -> None:
        self.deliveries.append(queued)
        message = queued.message
        odd = self.odd.get(message.message_id, {}) if queued.deliveries == 1 else {}
        delivery = Delivery(
            body=message.body,
            message_id=message.message_id,
            queue=message.queue.removesuffix(DEAD_LETTERS),
            urgent=message.queue.endswith("-urgent"),
            properties={**message.properties, **odd},
            count=queued.deliveries,
            enqueued_at=queued.visible_at,
            source_queue=queued.source,
        )

        async def handled(delivery: Delivery) -> object:
            try:
                return await self.handlers[message.queue](delivery)
            except (UnavailableError, UndeliverableError):
                raise
            except Exception as error:  # noqa: BLE001  the receiver would put the message back
                self._remember(error)
                return None

        await self.guarded(self.app.receiver.receive(handled, delivery), queued)

    async def guarded(self, work: Awaitable[object], queued: Queued | None = None) -> Any:
        """Return what ``work`` returns, and settle its message. Remember an unexpected error."""
        try:
            result = await self.clock.run(work)
        except self.allowed:
            if queued is not None:
                self.bus.abandon(queued)
        except Exception as error:  # noqa: BLE001  it is what the fuzz looks for
            self._remember(error)
            if queued is not None:
                self.bus.complete(queued)
        else:
            if queued is not None:
                self.bus.complete(queued)
            return result

    def _remember(self, error: Exception) -> None:
        self.errors.append(f"{type(error).__name__}: {error}"[:500])

    def drain(self) -> list[Message]:
        """Empty the queues that have a function, scheduled messages too; return the messages."""
        messages = [queued for name in self.handlers for queued in self.bus.queues[name].waiting]
        self.deliveries += messages
        for name in self.handlers:
            self.bus.queues[name].waiting.clear()
        return [queued.message for queued in messages]

    def state_of(self, order_id: str) -> str | None:
        """Return the stored ProcessState of an order."""
        for (_, key), row in self.table.entities.items():
            if key == f"order|{order_id}|a|state":
                return str(row.get("ProcessState"))
        return None


def _handlers(app: Application) -> dict[str, Callable[[Delivery], Awaitable[object]]]:
    handlers: dict[str, Callable[[Delivery], Awaitable[object]]] = {}
    for urgent in (False, True):
        handlers[lane(QUEUES.orders, urgent=urgent)] = app.submitter.handle
        handlers[lane(QUEUES.scheduler, urgent=urgent)] = app.scheduler.handle
        handlers |= {QUEUES.agent(name, urgent=urgent): app.agents[name].handle for name in AGENTS}
    handlers[QUEUES.dead_letters] = app.dead_letters.handle
    handlers[QUEUES.dead_letters + DEAD_LETTERS] = app.dead_letters.handle
    return handlers


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The rows of the orders, the time, valid bodies by queue, and the tokens of callbacks."""

    rows: Rows
    now: datetime
    valid: Mapping[str, tuple[bytes, ...]]
    tokens: tuple[str, ...]

    def world(self) -> World:
        """Return a new world with these orders."""
        return World(rows=self.rows, now=self.now)


async def scene() -> Scene:
    """Return the scene. It is the same in every process."""
    with patch.object(os, "urandom", random.Random(0).randbytes):  # ids are made of it
        return await _scene()


async def _scene() -> Scene:
    for service in SERVICES.values():
        service.tokens.clear()
    world = World(rows={}, runs_on=False)
    all_queues: tuple[tuple[str, ...], ...] = ((),)
    core = ((QUEUES.orders, QUEUES.scheduler),)
    orders: Iterable[tuple[str, str, tuple[tuple[str, ...], ...], dict[str, Any]]] = (
        ("O-asked", "order", core, {}),
        ("O-urgent", "order", core, {"urgent": True}),
        ("O-held", "order-held", core, {"lines": [{"note": "ring twice"}]}),
        ("O-answered", "order", (*core, ("agent-stock",)), {}),
        ("O-refused", "order-held", (*core, ("agent-payment",)), {"pay": "refuse"}),
        ("O-outside", "order", all_queues, {"reserve": "outside"}),
        ("O-later", "order", all_queues, {"pay": "later"}),
        ("O-failed", "order-held", all_queues, {"pay": "refuse"}),
        ("O-undoing", "order", all_queues, {"ship": "refuse", "undo": "pay"}),
        ("O-undone", "order", all_queues, {"ship": "refuse"}),
        (
            "O-large",
            "order",
            all_queues,
            {"reserve": "large", "text": "y" * 90_000, "pay": "outside"},
        ),
        ("O-done", "order", all_queues, {}),
    )
    for order_id, workflow, turns, content in orders:
        world.submit(order_id, workflow, **content)
        for queues in turns:
            await world.pump(*queues)
        world.drain()
    world.submit("O-given-up", "order")
    (letter,) = world.drain()
    source = {SOURCE: QUEUES.orders, "DeadLetterReason": "MaxDeliveryCountExceeded"}
    world.send(QUEUES.dead_letters, letter.message_id, letter.body, **source)
    await world.pump()
    assert not world.errors, world.errors
    valid: defaultdict[str, list[bytes]] = defaultdict(list)
    for queued in world.deliveries:
        body = queued.message.body
        if body not in valid[queued.message.queue] and len(body) < 20_000:
            valid[queued.message.queue].append(body)
    for queue in (QUEUES.alerts, QUEUES.rejected):
        valid[queue] = [message.body for message in world.bus.messages(queue)]
    valid[QUEUES.scheduler] += list(_commands(world))
    tokens = tuple(sorted(token for service in SERVICES.values() for token in service.tokens))
    valid[QUEUES.scheduler] += [_callback(token, end) for token in tokens for end in ENDS]
    return Scene(
        rows=world.table.entities,
        now=world.clock.now(),
        valid={queue: tuple(bodies) for queue, bodies in valid.items()},
        tokens=tokens,
    )


ENDS: tuple[Mapping[str, Any], ...] = (
    {"outcome": "done", "result": {"tracking": "T-1"}},
    {"outcome": "refused", "error": {"code": "lost", "message": "the parcel is lost"}},
)


def _callback(token: str, end: Mapping[str, Any]) -> bytes:
    body = parse_body(json.dumps(end).encode())
    return internal.encode(message_of(token, KEYS.read(token), body))


def _commands(world: World) -> Iterable[bytes]:
    seqs = {
        row["OrderID"]: row["Seq"]
        for (_, key), row in world.table.entities.items()
        if "|a|state" in key
    }
    for order_id in ("O-failed", "O-undoing", "O-asked"):
        for verb in ("resubmit", "skip", "undo", "cancel", "acknowledge"):
            message = CommandMessage(
                id=f"w-{verb}-{order_id}",
                order_id=order_id,
                verb=verb,
                by="ann",
                seq=seqs[order_id],
                step="pay" if verb in {"resubmit", "skip"} else None,
                input=internal.raw('{"lines":[]}' if verb == "resubmit" else None),
                reason="a reason",
            )
            yield internal.encode(message)
