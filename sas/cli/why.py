"""``sas why ORDER``: what an order waits for, and what moves it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial

from sas.adapters.endpoints import Endpoint
from sas.cli import arguments as args
from sas.cli import output, workflows
from sas.cli.arguments import Verb, Work
from sas.cli.output import time_of
from sas.codec.record import to_line
from sas.config import read_queues
from sas.domain.ids import key_time
from sas.domain.order import Order
from sas.domain.queues import Queues
from sas.domain.workflow import Workflows
from sas.features.circuit_breaker.guard import breakers
from sas.operate import finding, why
from sas.operate.errors import UsageError
from sas.operate.why import Lying, Waits
from sas.ports import StateStore

DESCRIPTION = """\
Say what became of an order in one sentence, the one thing that it waits for (a step with its agent
and that agent's circuit, a scheduler, the supervisor, or you), and the queue where its message lies
(with a Service Bus connection and the role Azure Service Bus Data Receiver). --app names the agent
of every step; without it, only agents that replied once are known.

  sas why 10248
  sas why 10248 --app orders.workflows:workflows --json
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("order_id", metavar="ORDER_ID")
    parser.add_argument("--app", metavar="MODULE:NAME", help="the workflows")
    args.add_json(parser, "one JSON object instead of text")
    args.add_connection(parser)


def _prepare(arguments: argparse.Namespace) -> Work:
    known = workflows.load(arguments.app) if arguments.app else None
    try:
        bus: Endpoint | None = args.read_bus(arguments, os.environ)
    except UsageError:
        if arguments.connection:
            raise
        bus = None  # the queues are left out
    explain = partial(_why, known=known, bus=bus, queues=read_queues(os.environ))
    return partial(explain, order_id=arguments.order_id, as_json=arguments.json)


async def _why(
    store: StateStore,
    *,
    known: Workflows | None,
    bus: Endpoint | None,
    queues: Queues,
    order_id: str,
    as_json: bool,
) -> int:
    order = await finding.load(store, order_id)
    journal = await store.journal(order_id)
    circuits = {name: one.value for name, one in (await breakers(store).all()).items()}
    agents = why.agents_of(order, journal, known)
    waits = why.waits_for(order, output.now(), agents=agents, circuits=circuits)
    story = why.story(order, journal)
    lying: list[Lying] = []
    problems: list[str] = []
    if waits.at is None:  # no message moves it
        pass
    elif bus is None:
        problems = ["the queues were not read: set ServiceBus"]
    else:
        async with args.open_bus(bus) as opened:
            lying, problems = await why.lies_in(opened, queues, order, waits.agent)
    if as_json:
        output.say(to_line(_record(order, story, waits, lying)))
        return 0
    for line in _lines(order, story, waits, lying):
        output.say(output.row([line]))
    for problem in problems:
        output.complain(f"sas: {output.one_line(problem)}")
    return 0


def _lines(order: Order, story: str, waits: Waits, lying: list[Lying]) -> Iterator[str]:
    yield f"order {order.order_id}  {order.process_state.value}  (seq {order.seq}): {story}"
    until = f" Until {time_of(waits.at)}." if waits.at else ""
    yield f"  waits for  {waits.what}{until}"
    if waits.then:
        yield f"  then       {waits.then}"
    if waits.agent:
        yield f"  agent      {waits.agent}, circuit {_circuit(waits)}"
    for one in lying:
        yield f"  message    in {one.queue} since {time_of(one.since)}, {one.ahead:,} ahead of it"
    if waits.todo:
        yield f"  to do      {waits.todo}"


def _circuit(waits: Waits) -> str:
    found = waits.circuit
    if found is None or not why.is_open(found):
        return "closed"
    return f"{found.state.value} until {time_of(found.until)} ({found.why})"


def _record(order: Order, story: str, waits: Waits, lying: list[Lying]) -> dict[str, object]:
    return {
        "OrderID": order.order_id,
        "ProcessState": order.process_state.value,
        "Seq": order.seq,
        "Story": story,
        "WaitsFor": waits.what,
        "Then": waits.then or None,
        "Until": key_time(waits.at) if waits.at else None,
        "Step": waits.step.name if waits.step else None,
        "Agent": waits.agent,
        "Circuit": waits.circuit.state.value if waits.circuit else None,
        "Messages": [
            {"Queue": one.queue, "Since": key_time(one.since), "Ahead": one.ahead} for one in lying
        ],
        "ToDo": waits.todo or None,
    }


VERBS = (
    Verb.with_store(
        "why",
        "say what an order waits for, and what moves it",
        DESCRIPTION,
        _add_arguments,
        _prepare,
    ),
)
