"""Compares the ledgers of the remote services with the notifications and the store.

The services know nothing of the pattern, so their ledgers are independent evidence. So are the keys
that they refuse by their seed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from azure.servicebus.aio import ServiceBusClient

from lab.chaos.run import Run
from lab.chaos.system import System
from orders.workflows import workflows
from samples.demo.verdict import Verdict, ids_of, judge
from samples.services.contract import SERVICES
from samples.services.faults import Verb
from samples.services.ledger import LedgerView
from sas.codec.external import AlertMessage, RejectedMessage
from sas.codec.strict import convert
from sas.domain.ids import idempotency_key
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
"""How an order ends if a service refused it. Other workflows hold it for an operator."""
ZERO = (
    "lost",
    "rejected",
    "parked",
    "failed without a refusal",
    "wrong end",
    "notified twice",
    "never notified",
    "notified without a reason",
    "alert missing",
    "effects doubled",
    "effects of undone orders in force",
    "effects wrong",
)
"""What must not happen to any order."""
PEEK_MAX = 250


@dataclass(slots=True, kw_only=True)
class Reconciliation:
    """What was found. ``wrong`` has lines for each title of ``ZERO``; each begins with an order."""

    states: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[str]] = field(default_factory=lambda: {title: [] for title in ZERO})
    notified: int = 0
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


async def reconcile(run: Run) -> Reconciliation:
    """Return what came of every order of a run."""
    result = Reconciliation(notified=len(run.tally.seen))
    ledgers = {service: run.system.remote.ledger(service) for service in SERVICES}
    result.calls = sum(ledger["calls"] for ledger in ledgers.values())
    _ends(result, run, ledgers)
    store = cast("StateStore", run.archive)  # as far as it is read here
    _stored(result, await judge(store, run.submitted, run.tally, ledgers))
    alerts = await _messages(result, run, store)
    await _queues(result, run.system, alerts)
    result.wrong["notified twice"] += run.notified_twice
    return result


def _ends(result: Reconciliation, run: Run, ledgers: Mapping[str, LedgerView]) -> None:
    """Compare the end that each application was notified of with the services' ledgers."""
    in_force = Counter(
        effect["key"]
        for ledger in ledgers.values()
        for effect in ledger["effects"]
        if effect["undone_at"] is None
    )
    result.effects = sum(in_force.values())
    steps = {one.name: [step.name for step in one.steps] for one in workflows()}
    for order_id, new in run.submitted.items():
        notified = run.tally.ended.get(order_id)
        keys = {name: idempotency_key(order_id, name, 0) for name in steps[new.workflow]}
        found = {name: in_force[key] for name, key in keys.items()}
        refused = [name for name, key in keys.items() if _refuses(run, name, key)]
        for title, text in what_is_wrong(new.workflow, notified, found, refused):
            result.wrong[title].append(f"{order_id}: {text}")
    doubled = {order_id for ledger in ledgers.values() for order_id in ledger["doubled"]}
    result.wrong["effects doubled"] += [f"{order_id}: more than one" for order_id in doubled]


def _refuses(run: Run, step: str, key: str) -> bool:
    service = SERVICE_OF[step]
    return run.system.remote.faults(service).refuses(service, Verb.DO, key)


def what_is_wrong(
    workflow: str, notified: str | None, in_force: Mapping[str, int], refused: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the end of an order, by a title of ``ZERO``.

    ``notified`` is the end that its application was notified of, ``in_force`` the effects of each
    step, ``refused`` the steps that a service refuses for good.
    """
    if notified is None:
        yield "lost", "its application was never notified of the end"
        return
    right = ENDS.get(workflow, "failed") if refused else "completed"
    if notified != right:
        title = "wrong end" if refused else "failed without a refusal"
        yield title, f"{notified}, not {right}; refused {list(refused)}"
    if notified == "completed" and set(in_force.values()) != {1}:
        yield "effects wrong", f"completed, in force {dict(in_force)}"
    if notified == "undone" and any(in_force.values()):
        yield "effects of undone orders in force", f"{dict(in_force)}"


def _stored(result: Reconciliation, verdict: Verdict) -> None:
    result.states, result.transitions = verdict.states, verdict.transitions
    wrong = result.wrong
    wrong["lost"] += [f"{order_id}: unfinished in the store" for order_id in verdict.unfinished]
    wrong["never notified"] += [f"{own_id.split('/')[0]}: {own_id}" for own_id in verdict.missing]
    wrong["effects wrong"] += [line.replace(" ", ": ", 1) for line in verdict.wrong_effects]


async def _messages(result: Reconciliation, run: Run, store: StateStore) -> set[str]:
    """Find notifications that no journal holds; return the ids of the alerts that journals hold."""
    notified, alerts = set[str](), set[str]()
    for order_id in run.submitted:
        journal = await store.journal(order_id)
        notified.update(ids_of(Notify, order_id, journal))
        alerts.update(ids_of(Alert, order_id, journal))
    unknown = sorted(run.tally.seen - notified)
    result.wrong["notified without a reason"] += [f"{one.split('/')[0]}: {one}" for one in unknown]
    return alerts


async def _queues(result: Reconciliation, system: System, alerts: set[str]) -> None:
    """Look for messages that lie somewhere, and for the alerts."""
    counts = await system.counts()
    queues = Queues()
    for (queue, kind), count in counts.items():
        if count and (kind.endswith("DeadLetter") or queue == queues.dead_letters):
            result.wrong["parked"].append(f"queue {queue}: {count} {kind}")
    text = system.stack.servicebus_connection
    async with ServiceBusClient.from_connection_string(text) as client:
        rejected = await _peek(client, queues.rejected)
        sent = {convert(body, AlertMessage).id for body in await _peek(client, queues.alerts)}
    for body in rejected:
        one = convert(body, RejectedMessage)
        text = f"{one.order_id or 'no order'}: {one.reason}, {one.description}; {one.source_queue}"
        result.wrong["rejected"].append(f"{text} {one.message_id} at {one.at}")
    missing = sorted(alerts - sent)
    result.wrong["alert missing"] += [f"{one.split('/')[0]}: {one}" for one in missing]


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
