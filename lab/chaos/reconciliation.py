"""Compares the ledgers of the remote services with the notifications and the store.

The services know nothing of the pattern, so their ledgers are independent evidence. Which keys they
refuse follows from their seed, so that is independent evidence too.
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

import orders
from lab.chaos.run import Run
from lab.chaos.system import System
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
from sas.saga import sagas_of

SERVICE_OF: Mapping[str, str] = {
    "reserve-stock": "stock",
    "take-payment": "payment",
    "ship": "shipping",
    "send-invoice": "mail",
    "deliver": "carrier",
}
ENDS: Mapping[str, str] = {"order": "undone", "order-delivered": "undone"}
"""How an order ends if a service refused a step. Other workflows hold it for an operator."""
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
    """The result of the comparison.

    ``problems`` has the lines of each title of ``ZERO``. A line begins with an order or a queue.
    """

    states: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[str]] = field(default_factory=lambda: {title: [] for title in ZERO})
    notified: int = 0
    effects: int = 0
    calls: int = 0

    @property
    def balanced(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.problems.values())

    def orders(self) -> list[str]:
        """Return the orders that have a problem, without repetition."""
        order_ids = (line.split(":")[0] for lines in self.problems.values() for line in lines)
        return list(dict.fromkeys(order_ids))


async def reconcile(run: Run) -> Reconciliation:
    """Compare the ends of all orders of a run, and return the result."""
    result = Reconciliation(notified=len(run.tally.notification_ids))
    ledgers = {service: run.system.remote.ledger(service) for service in SERVICES}
    result.calls = sum(ledger["calls"] for ledger in ledgers.values())
    _ends(result, run, ledgers)
    store = cast("StateStore", run.archive)  # as far as it is read here
    _stored(result, await judge(store, run.submitted, run.tally, ledgers))
    alerts = await _messages(result, run, store)
    await _queues(result, run.system, alerts)
    result.problems["notified twice"] += run.notified_twice
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
    steps = {
        workflow.name: [step.name for step in workflow.steps]
        for workflow in (saga.workflow for saga in sagas_of(orders))
    }
    for order_id, new in run.submitted.items():
        notified = run.tally.ended.get(order_id)
        keys = {name: idempotency_key(order_id, name, 0) for name in steps[new.workflow]}
        effects = {name: in_force[key] for name, key in keys.items()}
        refused = [name for name, key in keys.items() if _refuses(run, name, key)]
        for title, text in what_is_wrong(new.workflow, notified, effects, refused):
            result.problems[title].append(f"{order_id}: {text}")
    doubled = {order_id for ledger in ledgers.values() for order_id in ledger["doubled"]}
    result.problems["effects doubled"] += [f"{order_id}: more than one" for order_id in doubled]


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
    expected = ENDS.get(workflow, "failed") if refused else "completed"
    if notified != expected:
        title = "wrong end" if refused else "failed without a refusal"
        yield title, f"{notified}, not {expected}; refused {list(refused)}"
    if notified == "completed" and set(in_force.values()) != {1}:
        yield "effects wrong", f"completed, in force {dict(in_force)}"
    if notified == "undone" and any(in_force.values()):
        yield "effects of undone orders in force", f"{dict(in_force)}"


def _stored(result: Reconciliation, verdict: Verdict) -> None:
    result.states, result.transitions = verdict.states, verdict.transitions
    problems = result.problems
    problems["lost"] += [f"{order_id}: unfinished in the store" for order_id in verdict.unfinished]
    problems["never notified"] += [
        f"{own_id.split('/')[0]}: {own_id}" for own_id in verdict.missing
    ]
    problems["effects wrong"] += [line.replace(" ", ": ", 1) for line in verdict.wrong_effects]


async def _messages(result: Reconciliation, run: Run, store: StateStore) -> set[str]:
    """Find notifications that are in no journal; return the ids of the alerts of all journals."""
    notified_ids, alerts = set[str](), set[str]()
    for order_id in run.submitted:
        journal = await store.journal(order_id)
        notified_ids.update(ids_of(Notify, order_id, journal))
        alerts.update(ids_of(Alert, order_id, journal))
    unknown = sorted(run.tally.notification_ids - notified_ids)
    result.problems["notified without a reason"] += [
        f"{own_id.split('/')[0]}: {own_id}" for own_id in unknown
    ]
    return alerts


async def _queues(result: Reconciliation, system: System, alerts: set[str]) -> None:
    """Look for messages in queues that should be empty, and for alerts that are missing."""
    counts = await system.counts()
    queues = Queues()
    for (queue, kind), count in counts.items():
        if count and (kind.endswith("DeadLetter") or queue == queues.dead_letters):
            result.problems["parked"].append(f"queue {queue}: {count} {kind}")
    text = system.stack.servicebus_connection
    async with ServiceBusClient.from_connection_string(text) as client:
        rejected = await _peek(client, queues.rejected)
        sent_ids = {convert(body, AlertMessage).id for body in await _peek(client, queues.alerts)}
    for body in rejected:
        message = convert(body, RejectedMessage)
        order = message.order_id or "no order"
        reason = f"{message.reason}, {message.description}; {message.source_queue}"
        line = f"{order}: {reason} {message.message_id} at {message.at}"
        result.problems["rejected"].append(line)
    missing = sorted(alerts - sent_ids)
    result.problems["alert missing"] += [
        f"{alert_id.split('/')[0]}: {alert_id}" for alert_id in missing
    ]


async def _peek(client: ServiceBusClient, queue: str) -> list[bytes]:
    bodies: list[bytes] = []
    number = 0
    async with client.get_queue_receiver(queue) as receiver:
        while messages := await receiver.peek_messages(PEEK_MAX, sequence_number=number):
            bodies += [b"".join(message.body) for message in messages]
            number = (messages[-1].sequence_number or 0) + 1
    return bodies


async def show(system: System, order_id: str) -> str:
    """Return what ``sas show`` says of an order."""
    command = [sys.executable, "-m", "sas.cli", "show", order_id]
    process = await asyncio.create_subprocess_exec(
        *command,
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
