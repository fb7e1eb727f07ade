"""``sas queues``: show the messages of queues, send them again, or remove them."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Sequence

from sas.cli import application, moving, output
from sas.cli import arguments as args
from sas.cli.moving import in_words
from sas.cli.output import Record, time_of
from sas.codec.external import RejectedMessage
from sas.codec.record import to_line
from sas.config import read_queues
from sas.domain.ids import key_time, parse_key_time
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.engine.receiver import FIRST_AT, SOURCE
from sas.operate import redriving
from sas.operate.errors import ServiceUnavailableError, UsageError
from sas.operate.letters import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    PEEKS_AT_ONCE,
    READ_MAX,
    alert_of,
    rejected_of,
)
from sas.operate.redriving import ParsedMessage
from sas.ports import (
    BusUnavailableError,
    OperatorBus,
    Peeked,
    UndeliverableError,
)

DESCRIPTION = """\
Show every queue: how many messages wait, are scheduled, and are in its dead-letter subqueue, and
since when. The app names the queues of agents, --queue any other.

peek shows a queue's messages (--dead-letter: of its dead-letter subqueue). Nothing is decrypted.

redrive sends messages again, then removes them: from a dead-letter subqueue to its queue, from
orders-rejected to the queue that refused them. An order that was given up gets a new submission_id,
or it would be ignored; no other body changes. After a crash in between, a message may be sent
twice; none is lost.

remove deletes single messages that need no more work, by --id: from orders-rejected,
operator-alerts, or a dead-letter subqueue. There is no way back: keep what you need with peek
--json --content.

You need the role Azure Service Bus Data Receiver on the queue, and to redrive also Azure Service
Bus Data Sender on the target. At most 1,000 messages of a queue are read.

  sas queues --queue responses-web-shop
  sas queues peek orders-rejected --limit 5
  sas queues redrive orders-rejected --all --dry-run
  sas queues redrive responses-web-shop --dead-letter --id MESSAGE_ID
  sas queues remove orders-rejected --id MESSAGE_ID
"""
SHOWN_CHARACTERS_MAX = 1000
"""How many characters of a body are shown at most."""
QUEUE_COLUMNS = ("Queue", "Waiting", "Scheduled", "DeadLettered", "Oldest")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "action",
        nargs="?",
        choices=["peek", "redrive", "remove"],
        help="default: the list of queues",
    )
    add("name", nargs="?", metavar="QUEUE", help="the queue of peek, redrive and remove")
    application.add_argument(parser)
    add("--queue", action="append", default=[], metavar="QUEUE", help="list: also this queue")
    add("--dead-letter", action="store_true", help="the queue's dead-letter subqueue")
    limit = args.number("messages", 1, READ_MAX, whole=True)
    add("--limit", type=limit, default=20, metavar="N", help="peek: at most so many (default: 20)")
    add("--content", action="store_true", help="peek --json: whole bodies (may be personal)")
    add("--id", action="append", default=[], metavar="ID", help="this MessageId (repeat for more)")
    add("--all", action="store_true", help="redrive: all")
    add("--to", metavar="QUEUE", help="redrive: the target (default: where they came from)")
    moving.add_arguments(parser)
    args.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    queues = read_queues(os.environ)
    action, name = arguments.action, arguments.name
    if action and not name:
        raise UsageError(f"give the queue: sas queues {action} QUEUE")
    if arguments.content and not arguments.json:
        raise UsageError("--content needs --json: the text shows the first characters")
    if action == "redrive" and bool(arguments.id) == arguments.all:
        raise UsageError("give --id MESSAGE_ID (once or more), or --all")
    if action == "redrive" and not arguments.dead_letter and name != queues.rejected:
        raise UsageError(
            f"the messages of {name} wait for their reader; give --dead-letter for those that it "
            f"gave up (only {queues.rejected} is redriven without it)"
        )
    if action == "remove":
        _check_removal(arguments, queues)
    work = {None: _list, "peek": _peek, "redrive": _redrive, "remove": _remove}[action]

    async def run() -> int:
        async with args.open_bus(args.read_bus(os.environ)) as bus:
            try:
                return await work(bus, arguments, queues)
            except (BusUnavailableError, UndeliverableError) as error:
                raise ServiceUnavailableError(str(error)) from None

    return asyncio.run(run())


# -- The list ---------------------------------------------------------------------------------


async def _list(bus: OperatorBus, arguments: argparse.Namespace, queues: Queues) -> int:
    agents = sorted(application.agents_if_any(arguments.app))
    operator_queues = (queues.alerts, queues.rejected, queues.dead_letters)
    names = dict.fromkeys((*queues.on_the_way(agents), *operator_queues, *arguments.queue))
    gate = asyncio.Semaphore(PEEKS_AT_ONCE)

    async def count(name: str) -> Record:
        async with gate:
            return await _counts(bus, name)

    records = await asyncio.gather(*map(count, names))
    problems = [[str(record["Problem"])] if record["Problem"] else [] for record in records]
    _print(arguments, QUEUE_COLUMNS, records, problems)
    if all(problems):
        raise ServiceUnavailableError("no queue could be read")
    return 1 if any(problems) else 0


async def _counts(bus: OperatorBus, name: str) -> Record:
    record: Record = dict.fromkeys((*QUEUE_COLUMNS, "Problem")) | {"Queue": name}
    try:
        waiting = await bus.peek(name, READ_MAX)
        dead_letters = await bus.peek(name + DEAD_LETTER_SUBQUEUE, READ_MAX)
    except BusUnavailableError as error:
        return record | {"Problem": str(error)}
    scheduled = sum(message.is_scheduled for message in waiting)
    # A message that was put back keeps its age.
    times = [
        message.properties.get(FIRST_AT) or key_time(message.enqueued_at)
        for message in (*waiting, *dead_letters)
    ]
    counts = {
        "Waiting": len(waiting) - scheduled,
        "Scheduled": scheduled,
        "DeadLettered": len(dead_letters),
    }
    return record | counts | {"Oldest": min(times, default=None)}


def _print(
    arguments: argparse.Namespace,
    fields: Sequence[str],
    records: Sequence[Record],
    below: Sequence[Sequence[str]],
) -> None:
    if arguments.json:
        for record in records:
            output.say(to_line(record))
        return
    rows = [[_cell(name, record[name]) for name in fields] for record in records]
    for line in output.table(fields, rows, below):
        output.say(line)


def _cell(name: str, value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}" + ("+" if value >= READ_MAX else "")
    if name in {"Oldest", "EnqueuedAt"} and value:
        return time_of(parse_key_time(str(value)))
    return str(value or "-")


# -- peek -------------------------------------------------------------------------------------


async def _peek(bus: OperatorBus, arguments: argparse.Namespace, queues: Queues) -> int:
    pairs = await _parsed(bus, arguments, queues, int(arguments.limit))
    length_max = None if arguments.content and arguments.json else SHOWN_CHARACTERS_MAX
    records = [_record(message, part, length_max) for message, part in pairs]
    if arguments.name == queues.alerts:
        records = [
            record | _alert(message) for record, (message, _) in zip(records, pairs, strict=True)
        ]
    names_below = ("Description",) if arguments.name == queues.alerts else ("Description", "Body")
    below = [[str(record[name]) for name in names_below if record[name]] for record in records]
    if pairs or arguments.json:
        _print(arguments, ("MessageId", "EnqueuedAt", "Reason", "Source"), records, below)
    else:
        output.say(f"{_path(arguments)} is empty")
    return 0


async def _parsed(
    bus: OperatorBus, arguments: argparse.Namespace, queues: Queues, limit: int
) -> list[ParsedMessage]:
    messages = await bus.peek(_path(arguments), limit)
    return [
        (message, rejected_of(message) if arguments.name == queues.rejected else None)
        for message in messages
    ]


def _path(arguments: argparse.Namespace) -> str:
    name: str = arguments.name
    return name + DEAD_LETTER_SUBQUEUE if arguments.dead_letter else name


def _alert(message: Peeked) -> Record:
    """Return the members of a record that an alert replaces.

    The text of an alert is not shortened, because it says what to do.
    """
    alert = alert_of(message)
    if alert is None:
        return {"Description": message.body.decode(errors="replace")[:SHOWN_CHARACTERS_MAX]}
    subject = alert.order_id or alert.scope
    return {"Reason": alert.kind, "Source": subject, "Description": alert.text}


def _record(message: Peeked, part: RejectedMessage | None, length_max: int | None) -> Record:
    properties = message.properties
    body = part.body if part else message.body.decode(errors="replace")
    return {
        "MessageId": message.message_id,
        "EnqueuedAt": key_time(message.enqueued_at),
        "Scheduled": message.is_scheduled,
        "Reason": part.reason if part else properties.get(DEAD_LETTER_REASON),
        "Description": part.description if part else properties.get(DEAD_LETTER_DESCRIPTION),
        "Source": part.source_queue if part else message.source or properties.get(SOURCE),
        "Part": part.part if part else 1,
        "Parts": part.parts if part else 1,
        "Body": _shortened(body, length_max),
    }


def _shortened(body: str, length_max: int | None) -> str:
    if length_max is None or len(body) <= length_max:
        return body
    return f"{body[:length_max]}... ({len(body):,} characters; --json --content shows all)"


# -- redrive ----------------------------------------------------------------------------------


async def _redrive(bus: OperatorBus, arguments: argparse.Namespace, queues: Queues) -> int:
    path, ids = _path(arguments), None if arguments.all else arguments.id
    messages = await bus.peek(path, READ_MAX)
    plans, reasons = redriving.redrive(messages, path, ids=ids, queues=queues, to=arguments.to)
    targets = Counter(plan.move.message.queue for plan in plans if plan.move.message)
    destinations = ", ".join(f"{count:,} to {queue}" for queue, count in sorted(targets.items()))
    heading = f"redrive of {in_words(len(plans))} of {path}: {destinations or 'nothing'}"
    return await moving.carry_out(bus, plans, reasons=reasons, arguments=arguments, heading=heading)


# -- remove -----------------------------------------------------------------------------------


def _check_removal(arguments: argparse.Namespace, queues: Queues) -> None:
    """Check that the arguments name messages which no reader waits for.

    Raises:
        UsageError: they name no messages, or messages that wait for their reader.
    """
    if not arguments.id or arguments.all:
        raise UsageError("give --id MESSAGE_ID (once or more): remove takes single messages")
    if not arguments.dead_letter and arguments.name not in {queues.rejected, queues.alerts}:
        raise UsageError(
            f"the messages of {arguments.name} wait for their reader; give --dead-letter for those "
            f"that it gave up (without it, only {queues.rejected} and {queues.alerts} allow remove)"
        )


async def _remove(bus: OperatorBus, arguments: argparse.Namespace, queues: Queues) -> int:
    path = _path(arguments)
    plans, reasons = redriving.removal(await bus.peek(path, READ_MAX), path, arguments.id, queues)
    heading = f"removal of {in_words(len(plans))} from {path}"
    return await moving.carry_out(bus, plans, reasons=reasons, arguments=arguments, heading=heading)


VERBS = (
    args.Subcommand(
        name="queues",
        summary="show the messages of queues; send them again, or remove them",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        run=_run,
    ),
)
