"""``sas queues``: shows the messages of queues, sends them again, or removes them."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Sequence

from sas.cli import arguments as args
from sas.cli import moving, output, workflows
from sas.cli.moving import in_words
from sas.cli.output import time_of
from sas.codec.external import RejectedMessage
from sas.codec.record import to_line
from sas.config import read_queues
from sas.domain.ids import key_time, parse_key_time
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.engine.receiver import FIRST_AT, SOURCE
from sas.operate import redriving
from sas.operate.errors import UnavailableError, UsageError
from sas.operate.letters import READ_MAX, WHY, WHY_TEXT, alert_of, rejected_of
from sas.operate.redriving import Seen
from sas.ports import (
    BusUnavailableError,
    OperatorBus,
    Peeked,
    UndeliverableError,
)

DESCRIPTION = """\
Show every queue: how many messages wait, are scheduled, and are in its dead-letter subqueue, and
since when. --app adds the queues of agents, --queue any other.

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

  sas queues --app orders.workflows:workflows --queue responses-web-shop
  sas queues peek orders-rejected --limit 5
  sas queues redrive orders-rejected --all --dry-run
  sas queues redrive responses-web-shop --dead-letter --id MESSAGE_ID
  sas queues remove orders-rejected --id MESSAGE_ID
"""
AT_ONCE = 8
"""Queues that are read at the same time."""
SHOWN_MAX = 1000
"""Characters shown of a body."""
FIELDS = ("Queue", "Waiting", "Scheduled", "DeadLettered", "Oldest")

Record = dict[str, object]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "action",
        nargs="?",
        choices=["peek", "redrive", "remove"],
        help="default: the list of queues",
    )
    add("name", nargs="?", metavar="QUEUE", help="the queue of peek, redrive and remove")
    add("--app", metavar="MODULE:NAME", help="list: also the queues of these workflows' agents")
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
            except (BusUnavailableError, UndeliverableError) as failed:
                raise UnavailableError(str(failed)) from None

    return asyncio.run(run())


# -- The list ---------------------------------------------------------------------------------


async def _list(bus: OperatorBus, arguments: argparse.Namespace, queues: Queues) -> int:
    agents = sorted(workflows.load(arguments.app).agents()) if arguments.app else ()
    kept = (queues.alerts, queues.rejected, queues.dead_letters)
    names = dict.fromkeys((*queues.on_the_way(agents), *kept, *arguments.queue))
    gate = asyncio.Semaphore(AT_ONCE)

    async def counted(name: str) -> Record:
        async with gate:
            return await _counted(bus, name)

    records = await asyncio.gather(*map(counted, names))
    problems = [[str(one["Problem"])] if one["Problem"] else [] for one in records]
    _print(arguments, FIELDS, records, problems)
    if all(problems):
        raise UnavailableError("no queue could be read")
    return 1 if any(problems) else 0


async def _counted(bus: OperatorBus, name: str) -> Record:
    record: Record = dict.fromkeys((*FIELDS, "Problem")) | {"Queue": name}
    try:
        own = await bus.peek(name, READ_MAX)
        dead = await bus.peek(name + DEAD_LETTER_SUBQUEUE, READ_MAX)
    except BusUnavailableError as away:
        return record | {"Problem": str(away)}
    scheduled = sum(one.is_scheduled for one in own)
    # A message that was put back is as old as it was before.
    times = [one.properties.get(FIRST_AT) or key_time(one.enqueued_at) for one in (*own, *dead)]
    counts = {"Waiting": len(own) - scheduled, "Scheduled": scheduled, "DeadLettered": len(dead)}
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
    found = await _seen(bus, arguments, queues, int(arguments.limit))
    shown = None if arguments.content and arguments.json else SHOWN_MAX
    records = [_record(*one, shown) for one in found]
    if arguments.name == queues.alerts:
        records = [record | _alert(one) for record, (one, _) in zip(records, found, strict=True)]
    shown_below = ("Description",) if arguments.name == queues.alerts else ("Description", "Body")
    below = [[str(one[name]) for name in shown_below if one[name]] for one in records]
    if found or arguments.json:
        _print(arguments, ("MessageId", "EnqueuedAt", "Reason", "Source"), records, below)
    else:
        output.say(f"{_path(arguments)} is empty")
    return 0


async def _seen(
    bus: OperatorBus, arguments: argparse.Namespace, queues: Queues, limit: int
) -> list[Seen]:
    found = await bus.peek(_path(arguments), limit)
    return [(one, rejected_of(one) if arguments.name == queues.rejected else None) for one in found]


def _path(arguments: argparse.Namespace) -> str:
    name: str = arguments.name
    return name + DEAD_LETTER_SUBQUEUE if arguments.dead_letter else name


def _alert(one: Peeked) -> Record:
    """Return what an alert says, whole: its text tells the operator what to do."""
    alert = alert_of(one)
    if alert is None:
        return {"Description": one.body.decode(errors="replace")[:SHOWN_MAX]}
    about = alert.order_id or alert.scope
    return {"Reason": alert.kind, "Source": about, "Description": alert.text}


def _record(one: Peeked, part: RejectedMessage | None, shown: int | None) -> Record:
    said, body = one.properties, part.body if part else one.body.decode(errors="replace")
    return {
        "MessageId": one.message_id,
        "EnqueuedAt": key_time(one.enqueued_at),
        "Scheduled": one.is_scheduled,
        "Reason": part.reason if part else said.get(WHY),
        "Description": part.description if part else said.get(WHY_TEXT),
        "Source": part.source_queue if part else one.source or said.get(SOURCE),
        "Part": part.part if part else 1,
        "Parts": part.parts if part else 1,
        "Body": _shown(body, shown),
    }


def _shown(body: str, most: int | None) -> str:
    if most is None or len(body) <= most:
        return body
    return f"{body[:most]}... ({len(body):,} characters; --json --content shows all)"


# -- redrive ----------------------------------------------------------------------------------


async def _redrive(bus: OperatorBus, arguments: argparse.Namespace, queues: Queues) -> int:
    path, ids = _path(arguments), None if arguments.all else arguments.id
    found = await bus.peek(path, READ_MAX)
    moves, left = redriving.redrive(found, path, ids=ids, queues=queues, to=arguments.to)
    targets = Counter(one.move.message.queue for one in moves if one.move.message)
    of = ", ".join(f"{number:,} to {queue}" for queue, number in sorted(targets.items()))
    heading = f"redrive of {in_words(len(moves))} of {path}: {of or 'nothing'}"
    return await moving.carry_out(bus, moves, left=left, arguments=arguments, heading=heading)


# -- remove -----------------------------------------------------------------------------------


def _check_removal(arguments: argparse.Namespace, queues: Queues) -> None:
    """Refuse to remove messages that wait for their reader, or that are not named."""
    if not arguments.id or arguments.all:
        raise UsageError("give --id MESSAGE_ID (once or more): remove takes single messages")
    if not arguments.dead_letter and arguments.name not in {queues.rejected, queues.alerts}:
        raise UsageError(
            f"the messages of {arguments.name} wait for their reader; give --dead-letter for those "
            f"that it gave up (without it, only {queues.rejected} and {queues.alerts} allow remove)"
        )


async def _remove(bus: OperatorBus, arguments: argparse.Namespace, queues: Queues) -> int:
    path = _path(arguments)
    moves, left = redriving.removal(await bus.peek(path, READ_MAX), path, arguments.id, queues)
    heading = f"removal of {in_words(len(moves))} from {path}"
    return await moving.carry_out(bus, moves, left=left, arguments=arguments, heading=heading)


VERBS = (
    args.Verb(
        name="queues",
        summary="show the messages of queues; send them again, or remove them",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        run=_run,
    ),
)
