"""Compares the ledgers of the remote services with the notifications and the store.

The "books" are these ledgers, and the keys that the services refuse by their seed. The services
know nothing of the pattern.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from azure.servicebus.aio import ServiceBusClient

from orders.workflows import workflows
from samples.chaos.run import Run
from samples.chaos.system import System
from samples.demo.verdict import Verdict, judge
from samples.services.contract import SERVICES
from samples.services.faults import Verb
from samples.services.ledger import LedgerView
from sas.codec.outward import AlertMessage, RejectedMessage
from sas.codec.strict import convert
from sas.domain.ids import idempotency_key, message_id
from sas.domain.messages import Alert, Notify
from sas.domain.queues import Queues
from sas.ports import StateStore

SERVICE_OF: Mapping[str, str] = {
    "reserve-stock": "stock",
    "take-payment": "payment",
    "ship": "shipping",
    "send-invoice": "mail",
    "deliver": "carrier",
}
ENDS: Mapping[str, str] = {"order": "undone", "order-delivered": "undone"}
"""How an order of a workflow ends that a service refused; the others are held for an operator."""
ZERO = (
    "lost",
    "rejected",
    "parked",
    "failed untried",
    "ended otherwise than the books say",
    "told twice",
    "never told",
    "told without a reason",
    "alert missing",
    "effects doubled",
    "effects of undone orders in force",
    "effects wrong",
)
"""What must not happen to any order."""
SHOWN_MAX = 10
PEEK_MAX = 250


@dataclass(slots=True)
class Books:
    """What was found. ``wrong`` has lines for each title of ``ZERO``; each begins with an order."""

    states: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[str]] = field(default_factory=lambda: {title: [] for title in ZERO})
    told: int = 0
    effects: int = 0
    calls: int = 0

    @property
    def balanced(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.wrong.values())

    def orders(self) -> list[str]:
        """Return the orders that something is wrong with, the first ones."""
        found = (line.split(":")[0] for lines in self.wrong.values() for line in lines)
        return list(dict.fromkeys(found))


async def reconcile(run: Run) -> Books:
    """Return what came of every order of a run."""
    books = Books(told=len(run.tally.seen))
    ledgers = {service: run.system.remote.ledger(service) for service in SERVICES}
    books.calls = sum(ledger["calls"] for ledger in ledgers.values())
    _ends(books, run, ledgers)
    await run.archive.read()
    store = run.archive.store
    _stored(books, await judge(store, run.submitted, run.tally, ledgers))
    alerts = await _messages(books, run, store)
    await _queues(books, run.system, alerts)
    books.wrong["told twice"] += run.told_twice
    return books


def _ends(books: Books, run: Run, ledgers: Mapping[str, LedgerView]) -> None:
    """Compare what each application was told in the end with the services' own books."""
    in_force = Counter(
        effect["key"]
        for ledger in ledgers.values()
        for effect in ledger["effects"]
        if effect["undone_at"] is None
    )
    books.effects = sum(in_force.values())
    steps = {one.name: [step.name for step in one.steps] for one in workflows()}
    for order_id, new in run.submitted.items():
        told = run.tally.ended.get(order_id)
        keys = {name: idempotency_key(order_id, name, 0) for name in steps[new.workflow]}
        found = {name: in_force[key] for name, key in keys.items()}
        refused = [name for name, key in keys.items() if _refuses(run, name, key)]
        for title, text in what_is_wrong(new.workflow, told, found, refused):
            books.wrong[title].append(f"{order_id}: {text}")
    doubled = {order_id for ledger in ledgers.values() for order_id in ledger["doubled"]}
    books.wrong["effects doubled"] += [f"{order_id}: more than one" for order_id in doubled]


def _refuses(run: Run, step: str, key: str) -> bool:
    service = SERVICE_OF[step]
    return run.system.remote.faults(service).refuses(service, Verb.DO, key)


def what_is_wrong(
    workflow: str, told: str | None, in_force: Mapping[str, int], refused: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the end of an order, by a title of ``ZERO``.

    ``told`` is the end that its application was told, ``in_force`` the effects of each step,
    ``refused`` the steps that a service refuses for good.
    """
    if told is None:
        yield "lost", "its application was never told the end"
        return
    right = ENDS.get(workflow, "failed") if refused else "completed"
    if told != right:
        title = "ended otherwise than the books say" if refused else "failed untried"
        yield title, f"{told}, not {right}; refused {list(refused)}"
    if told == "completed" and set(in_force.values()) != {1}:
        yield "effects wrong", f"completed, in force {dict(in_force)}"
    if told == "undone" and any(in_force.values()):
        yield "effects of undone orders in force", f"{dict(in_force)}"


def _stored(books: Books, verdict: Verdict) -> None:
    books.states, books.transitions = verdict.states, verdict.transitions
    wrong = books.wrong
    wrong["lost"] += [f"{order_id}: unfinished in the store" for order_id in verdict.unfinished]
    wrong["never told"] += [f"{own_id.split('/')[0]}: {own_id}" for own_id in verdict.missing]
    wrong["effects wrong"] += [line.replace(" ", ": ", 1) for line in verdict.wrong_effects]


async def _messages(books: Books, run: Run, store: StateStore) -> set[str]:
    """Find what was told without a reason; return the ids of the alerts that the journals hold."""
    told, alerts = set(), set()
    for order_id in run.submitted:
        for entry in await store.journal(order_id):
            for index, message in enumerate(entry.messages):
                own_id = message_id(order_id, entry.seq, index)
                if isinstance(message, Notify):
                    told.add(own_id)
                elif isinstance(message, Alert):
                    alerts.add(own_id)
    unknown = sorted(run.tally.seen - told)
    books.wrong["told without a reason"] += [f"{one.split('/')[0]}: {one}" for one in unknown]
    return alerts


async def _queues(books: Books, system: System, alerts: set[str]) -> None:
    """Look for messages that lie somewhere, and for the alerts."""
    counts = await system.counts()
    queues = Queues()
    for (queue, kind), count in counts.items():
        if count and (kind.endswith("DeadLetter") or queue == queues.dead_letters):
            books.wrong["parked"].append(f"queue {queue}: {count} {kind}")
    text = system.stack.servicebus_connection
    async with ServiceBusClient.from_connection_string(text) as client:
        rejected = await _peek(client, queues.rejected)
        sent = {convert(body, AlertMessage).id for body in await _peek(client, queues.alerts)}
    for body in rejected:
        one = convert(body, RejectedMessage)
        text = f"{one.order_id or 'no order'}: {one.reason}, {one.description}; {one.source_queue}"
        books.wrong["rejected"].append(f"{text} {one.message_id} at {one.at}")
    missing = sorted(alerts - sent)
    books.wrong["alert missing"] += [f"{one.split('/')[0]}: {one}" for one in missing]


async def _peek(client: ServiceBusClient, queue: str) -> list[bytes]:
    found: list[bytes] = []
    number = 0
    async with client.get_queue_receiver(queue) as receiver:
        while messages := await receiver.peek_messages(PEEK_MAX, sequence_number=number):
            found += [b"".join(message.body) for message in messages]
            number = (messages[-1].sequence_number or 0) + 1
    return found


async def show(system: System, order_id: str) -> str:
    """Return what ``sas show`` says of an order."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sas.cli", "show", order_id),
        env=os.environ
        | {
            "ServiceBus": system.stack.servicebus_connection,
            "AzureWebJobsStorage": system.stack.storage_connection,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return output.decode(errors="replace")
