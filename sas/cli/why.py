"""``sas why``: show what an order waits for, and what moves it on."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from sas.cli import application, look, output
from sas.cli import arguments as args
from sas.cli.arguments import Subcommand, Work
from sas.cli.output import Record, time_of
from sas.codec import internal
from sas.codec.internal import CommandMessage
from sas.codec.record import to_line
from sas.codec.strict import MalformedError
from sas.config import read_queues
from sas.domain.ids import check_order_id, key_time
from sas.domain.messages import JournalEntry
from sas.domain.order import Order, OrderState, StepRecord
from sas.domain.queues import Queues, lane
from sas.domain.workflow import Workflows
from sas.features.circuit_breaker.guard import breakers
from sas.features.circuit_breaker.rules import Breaker, BreakerState
from sas.operate import finding, letters, why
from sas.operate.errors import NotPossibleError, UsageError
from sas.operate.letters import Place
from sas.operate.why import Waits
from sas.ports import MessageBus, OtherVersionError, StateStore

DESCRIPTION = """\
Show why an order does not move: the one thing that it waits for, its step and attempt, the agent
with its circuit, the queue that holds its message, when the supervisor looks at it next, and what
you can do.

Where a Service Bus namespace is configured, the queues are peeked for the message; you need the
role Azure Service Bus Data Receiver on them. The agents' queues are those of the app, of the
circuits, of the journal, and of infra/queues.json in this directory.

  sas why 10248
  sas why 10248 --json
"""


_COMMAND = "A scheduler, to carry out a command."


@dataclass(frozen=True, slots=True)
class AwaitedMessage:
    """The message that an order waits for: what is known of it in words, and its place."""

    text: str
    place: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that ``sas why`` prints about an order."""

    order: Order
    journal: Sequence[JournalEntry]
    waits: Waits
    message: AwaitedMessage | None


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("order_id", metavar="ORDER_ID")
    application.add_argument(parser)
    args.add_json(parser, "one JSON object instead of text")


def _why(arguments: argparse.Namespace) -> Work:
    definitions = application.workflows_if_any(arguments.app)
    queues = read_queues(os.environ)
    try:
        check_order_id(arguments.order_id)
    except ValueError as error:
        raise UsageError(str(error)) from None

    async def tell(store: StateStore) -> int:
        async with args.open_bus_if_any() as bus:
            order = await store.load(arguments.order_id)
            if order is None:
                order_id = arguments.order_id
                if submitted := await letters.submitted(bus, queues, order_id):
                    look.say_submitted(order_id, submitted, as_json=arguments.json)
                    return 0
                return await _tell_rejected(bus, queues, order_id, as_json=arguments.json)
            explanation = await _explanation(
                store, bus, order=order, queues=queues, definitions=definitions
            )
        lines = [to_line(_record(explanation))] if arguments.json else _lines(explanation)
        for line in lines:
            output.say(line)
        return 0

    return tell


async def _explanation(
    store: StateStore,
    bus: MessageBus | None,
    *,
    order: Order,
    queues: Queues,
    definitions: Workflows | None,
) -> Explanation:
    journal = await store.journal(order.order_id)
    circuits = {name: shared.value for name, shared in (await breakers(store).all()).items()}
    agents = why.agents_of(order, journal, definitions)
    waits = why.waits_for(order, output.now(), agents=agents, circuits=circuits)
    message = None
    if waits.step is not None and waits.step.complete_by is not None:
        names = {waits.agent} if waits.agent else {*circuits, *letters.agents_here(queues)}
        message = await _message(bus, order, waits=waits, queues=queues, agents=names)
        waits = _with_agent(waits, message, queues, circuits)
        if waits.step is not None and waits.step.awaits_callback and not waits.todo:
            waits = replace(waits, todo=look.of_callback(order, waits.step))
    elif order.process_state is OrderState.ERROR:
        waits = replace(waits, todo=look.advice(order, output.now()))
        message = await _command(bus, order, queues) if bus is not None else None
        if message is not None:
            waits = replace(waits, awaited=_COMMAND, then="", todo=look.APP_RUNS)
    letter = message.place.letter if message and message.place else None
    since = (letter.left_since if letter else None) or why.left_since(journal)
    if letter is None and since is not None:
        message = AwaitedMessage(f"none: the supervisor postpones it, {time_of(since)}")
    waits = why.held(order, waits, since)
    return Explanation(order=order, journal=journal, waits=waits, message=message)


async def _command(bus: MessageBus, order: Order, queues: Queues) -> AwaitedMessage | None:
    """Look for a command for this order that is still in the queues of the scheduler."""
    paths = [lane(queues.scheduler, urgent=urgent) for urgent in (False, True)]
    for letter in (await letters.read(bus, paths)).letters:
        with suppress(MalformedError, OtherVersionError):
            command = internal.decode(letter.peeked.body, CommandMessage)
            if command.order_id == order.order_id and command.seq in {None, order.seq}:
                text = f"{command.verb} by {command.by} in {letter.path}, {time_of(letter.since)}"
                return AwaitedMessage(text, Place(letter, 0))
    return None


async def _message(
    bus: MessageBus | None, order: Order, *, waits: Waits, queues: Queues, agents: set[str]
) -> AwaitedMessage:
    """Look for the message that moves the step on."""
    step = waits.step
    if step is None or (step.resting and not step.dispatched):
        return AwaitedMessage("none: the supervisor sends one when the rest is over")
    if bus is None:
        return AwaitedMessage("not looked for: no Service Bus namespace is configured")
    contents = await letters.read(bus, letters.waiting_paths(order, step, queues, agents))
    place = letters.place_of(order, step, contents.letters)
    if place is not None:
        preposition = "scheduled in" if place.letter.peeked.is_scheduled else "in"
        since = time_of(place.letter.since)
        return AwaitedMessage(
            f"{preposition} {place.letter.path}, {since}, {place.before:,} before it", place
        )
    if contents.problems:
        return AwaitedMessage(f"not known: {next(iter(contents.problems.values()))}")
    if step.dispatched and not (agents or step.awaits_callback):
        return AwaitedMessage(f"not known, as the queue of its agent is not: {application.HOW}")
    return AwaitedMessage(_in_no_queue(step))


def _in_no_queue(step: StepRecord) -> str:
    if step.awaits_callback:
        return "none: the callback comes by HTTP, and has not come"
    actor = "its agent" if step.dispatched else "a scheduler"
    return (
        f"in no queue: {actor} is handling it. If its process died, it comes again within half a "
        "minute: when the lock of the message ends with which the order began to run on"
    )


def _with_agent(
    waits: Waits, message: AwaitedMessage, queues: Queues, circuits: Mapping[str, Breaker]
) -> Waits:
    """Return what the order waits for, with the agent in whose queue its message is, if any."""
    if waits.agent is not None or message.place is None:
        return waits
    queue = message.place.letter.source.removesuffix("-urgent")
    if queue == queues.replies or not queue.startswith(queues.agent_prefix):
        return waits
    agent = queue.removeprefix(queues.agent_prefix)
    return replace(waits, agent=agent, circuit=circuits.get(agent))


async def _tell_rejected(
    bus: MessageBus | None, queues: Queues, order_id: str, *, as_json: bool
) -> int:
    """Report an order that the store does not have, if it is on ``orders-rejected``."""
    part = await look.rejected_part(bus, queues, order_id)
    if part is None:
        raise NotPossibleError(finding.no_such_order(order_id))
    todo = f"correct it and submit it again, or `sas messages resend {part.id}`"
    if as_json:
        output.say(to_line(look.rejected_record(part) | {"WaitsFor": "Nothing.", "Todo": todo}))
        return 0
    sentence = f"{order_id} was rejected and never began: {part.description}"
    output.say(output.row([f"{sentence} ({part.reason})"]))
    for line in output.facts((("message", f"on {queues.rejected}, {part.id}"), ("do", todo))):
        output.say(line)
    return 0


# -- The output -------------------------------------------------------------------------------


def _lines(explanation: Explanation) -> list[str]:
    order, waits, step = explanation.order, explanation.waits, explanation.waits.step
    story = why.story(order, explanation.journal)
    headline = output.row([f"{order.order_id} is {order.process_state.value}. {story}"])
    pairs = [("waits for", waits.awaited)]
    if step is not None:
        error = step.last_error
        pairs += [
            ("step", f"{step.name}, attempt {step.epoch}, FailureCount {step.failure_count}"),
            ("agent", waits.agent or f"not known: {application.HOW}"),
            ("circuit", _circuit(waits.circuit) if waits.agent else ""),
            ("message", explanation.message.text if explanation.message else ""),
            ("next look", f"the supervisor, {time_of(waits.at)}" if waits.at else ""),
            ("last error", _error(explanation)),
            ("at attempt", f"{error.epoch}.{error.attempt}, {time_of(error.at)}" if error else ""),
            ("next call", f"by {time_of(waits.called_by)}" if waits.called_by else ""),
        ]
    return [
        headline,
        *output.facts([*pairs, ("then", waits.then), ("do", waits.todo or "nothing")]),
    ]


def _error(explanation: Explanation) -> str:
    step = explanation.waits.step
    if step is None:
        return ""
    if step.error is not None:
        return f"{step.error.code}: {step.error.message}"
    return f"{step.last_error.kind}: {step.last_error.message}" if step.last_error else ""


def _circuit(circuit: Breaker | None) -> str:
    if circuit is None or circuit.state is BreakerState.CLOSED:
        return "closed: calls go out"
    until = f", {output.phrase('until', circuit.until)}" if circuit.until else ""
    why_open = f": {circuit.why}" if circuit.why else ""
    return f"{circuit.state.value} since {time_of(circuit.since)}{until}{why_open}"


def _record(explanation: Explanation) -> Record:
    order, waits, step = explanation.order, explanation.waits, explanation.waits.step
    place = explanation.message.place if explanation.message else None
    circuit = waits.circuit
    return {
        "OrderID": order.order_id,
        "ProcessState": order.process_state.value,
        "Seq": order.seq,
        "Story": why.story(order, explanation.journal),
        "WaitsFor": waits.awaited,
        "Step": step.name if step else None,
        "Attempt": step.epoch if step else None,
        "FailureCount": step.failure_count if step else None,
        "Agent": waits.agent,
        "Circuit": {
            "State": circuit.state.value,
            "Since": _time(circuit.since),
            "Until": _time(circuit.until),
            "Why": circuit.why,
        }
        if circuit
        else None,
        "Message": {
            "Said": explanation.message.text,
            "Queue": place.letter.path if place else None,
            "Since": _time(place.letter.since) if place else None,
            "Before": place.before if place else None,
        }
        if explanation.message
        else None,
        "NextLook": _time(waits.at),
        "LastError": _error(explanation) or None,
        "NextCall": _time(waits.called_by),
        "Then": waits.then or None,
        "Todo": waits.todo or "nothing",
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else key_time(moment)


VERBS = (
    Subcommand.with_store(
        "why",
        "say what an order waits for, and what moves it",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        prepare=_why,
    ),
)
