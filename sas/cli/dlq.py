"""``sas dlq``: show the dead letters of all queues with their orders, and send them again."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sas.cli import application, inboxes, moving, output
from sas.cli import arguments as args
from sas.cli.arguments import Subcommand, Work
from sas.cli.moving import in_words
from sas.cli.output import Record, time_of
from sas.codec.record import to_line
from sas.config import read_queues
from sas.domain.ids import key_time
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.operate import finding, letters, redriving
from sas.operate.errors import NotPossibleError, ServiceUnavailableError, UsageError
from sas.operate.letters import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    DeadLetterFate,
    Letter,
    Verdict,
)
from sas.ports import BusUnavailableError, OperatorBus, StateStore, UndeliverableError

DLQ = """\
Work with dead letters: messages that a queue gave up, on dead-letters and in the dead-letter
subqueue of every queue. Each is joined with its order:

  safe to redrive   nothing was recorded of it, a step still waits for it, or it was recorded and
                    may not have sent its messages: they are sent again under the same ids
  already done      its work is over: to send it again would change nothing
  order gone        there is no such order any more
  not known         its body cannot be read, or names no order

  list         all, the longest waiting first
  explain ID   one of them, and what to do
  redrive      send those again that are safe, then remove them: those named by ID, or --all.
               Others stay. sas queues redrive sends any of them

Messages on dead-letters itself wait for the function of that queue, and are not redriven. Agents'
queues are those of the app, and of infra/queues.json in this directory; --queue adds any other.

  sas dlq list --queue responses-web-shop
  sas dlq explain MESSAGE_ID
  sas dlq redrive --all --dry-run
"""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter and its verdict."""

    letter: Letter
    verdict: Verdict

    @property
    def state(self) -> str:
        """The state of the order; "-" if there is no order."""
        return self.verdict.order.process_state.value if self.verdict.order else "-"

    def given_up(self) -> str:
        """Return why the queue gave the message up."""
        properties = self.letter.peeked.properties
        reason = properties.get(DEAD_LETTER_REASON, "no reason is known")
        text = properties.get(DEAD_LETTER_DESCRIPTION)
        return f"{reason}: {text}" if text else reason


def _add_dlq(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=["list", "explain", "redrive"], default="list")
    parser.add_argument("id", nargs="*", metavar="ID", help="of the message")
    parser.add_argument("--all", action="store_true", help="redrive: all that are safe")
    application.add_argument(parser)
    parser.add_argument("--queue", action="append", default=[], metavar="QUEUE", help="also this")
    moving.add_arguments(parser)
    inboxes.add_choice(parser, "messages")
    args.add_json(parser)


def _dlq(arguments: argparse.Namespace) -> Work:
    action, queues = arguments.action, read_queues(os.environ)
    since = inboxes.since_when(arguments)
    if action == "list" and arguments.id:
        raise UsageError("list takes no ID: sas dlq explain ID explains one")
    if action == "explain" and len(arguments.id) != 1:
        raise UsageError("give one ID: sas dlq explain ID")
    if action == "redrive" and bool(arguments.id) == arguments.all:
        raise UsageError("give one ID or more, or --all")
    agents = letters.agents_here(queues) | application.agents_if_any(arguments.app)
    endpoint = args.read_bus(os.environ)

    async def run(store: StateStore) -> int:
        async with args.open_bus(endpoint) as bus:
            paths = letters.dead_letter_paths(queues, sorted(agents), arguments.queue)
            contents = await letters.read(bus, paths)
            if len(contents.problems) == len(paths):
                raise ServiceUnavailableError(
                    f"no queue could be read: {contents.problems[paths[0]]}"
                )
            by_age = sorted(contents.letters, key=lambda letter: letter.since)
            recent = [letter for letter in by_age if since is None or letter.since >= since]
            dead_letters = await _judge_all(store, recent, queues)
            if action == "redrive":
                try:
                    return await _redrive(bus, dead_letters, arguments, queues)
                except (BusUnavailableError, UndeliverableError) as error:
                    raise ServiceUnavailableError(str(error)) from None
        if action == "explain":
            return _explain(dead_letters, arguments, queues)
        return _list_dlq(dead_letters, contents.problems, arguments)

    return run


async def _judge_all(
    store: StateStore, candidates: Sequence[Letter], queues: Queues
) -> list[DeadLetter]:
    gate = asyncio.Semaphore(finding.LOADS_AT_ONCE)

    async def judge(letter: Letter) -> DeadLetter:
        async with gate:
            return DeadLetter(letter, await letters.judge(store, letter, queues))

    return list(await asyncio.gather(*map(judge, candidates)))


def _list_dlq(
    dead_letters: Sequence[DeadLetter], problems: Mapping[str, str], arguments: argparse.Namespace
) -> int:
    page = dead_letters[: int(arguments.limit)]
    if arguments.json:
        for dead_letter in page:
            output.say(to_line(_dlq_record(dead_letter)))
    else:
        heading = ("Since", "Queue", "Order", "State", "Fate", "MessageId")
        rows = [
            (
                time_of(dead_letter.letter.since),
                dead_letter.letter.path,
                dead_letter.letter.order_id or "-",
                dead_letter.state,
                dead_letter.verdict.fate.value,
                dead_letter.letter.peeked.message_id,
            )
            for dead_letter in page
        ]
        below = [[f"{dead_letter.given_up()}; {dead_letter.verdict.why}"] for dead_letter in page]
        for line in output.table(heading, rows, below) if rows else ():
            output.say(line)
        fates = Counter(dead_letter.verdict.fate.value for dead_letter in dead_letters)
        parts = ", ".join(f"{count:,} {name}" for name, count in fates.most_common())
        summary = inboxes.count_text(len(dead_letters), "dead letter", "dead letters", len(page))
        output.say(f"{summary}: {parts}" if parts else summary)
    for problem in problems.values():
        output.complain(f"sas: {output.one_line(problem)}")
    return 1 if problems else 0


def _dlq_record(dead_letter: DeadLetter) -> Record:
    letter, order = dead_letter.letter, dead_letter.verdict.order
    return {
        "MessageId": letter.peeked.message_id,
        "Queue": letter.path,
        "Source": letter.source,
        "Since": key_time(letter.since),
        "GivenUp": dead_letter.given_up(),
        "OrderID": letter.order_id,
        "ProcessState": order.process_state.value if order else None,
        "Fate": dead_letter.verdict.fate.value,
        "Why": dead_letter.verdict.why,
    }


def _explain(
    dead_letters: Sequence[DeadLetter], arguments: argparse.Namespace, queues: Queues
) -> int:
    name = arguments.id[0]
    matches = [
        dead_letter for dead_letter in dead_letters if dead_letter.letter.peeked.message_id == name
    ]
    if not matches:
        raise NotPossibleError(f"there is no dead letter {name}: sas dlq list shows all")
    for dead_letter in matches:
        if arguments.json:
            output.say(to_line(_dlq_record(dead_letter) | {"Todo": _todo(dead_letter, queues)}))
            continue
        verdict, letter = dead_letter.verdict, dead_letter.letter
        facts = (
            ("message", letter.peeked.message_id),
            ("queue", f"{letter.path}, {time_of(letter.since)}"),
            ("from", letter.source),
            ("given up", dead_letter.given_up()),
            ("order", f"{letter.order_id or 'none'}, {dead_letter.state}"),
            ("fate", f"{verdict.fate.value}: {verdict.why}"),
            ("do", _todo(dead_letter, queues)),
        )
        for line in output.facts(facts):
            output.say(line)
    return 0


def _todo(dead_letter: DeadLetter, queues: Queues) -> str:
    letter, name = dead_letter.letter, dead_letter.letter.peeked.message_id
    queue = letter.path.removesuffix(DEAD_LETTER_SUBQUEUE)
    if letter.path == queues.dead_letters:
        return "nothing: the function of this queue takes it; check that the function app runs"
    match dead_letter.verdict.fate:
        case DeadLetterFate.SAFE:
            return f"repair the cause, then `sas dlq redrive {name}`"
        case DeadLetterFate.DONE | DeadLetterFate.GONE:
            return f"nothing; `sas queues remove {queue} --dead-letter --id {name}` removes it"
        case DeadLetterFate.UNKNOWN:
            return f"look at it: `sas queues peek {queue} --dead-letter`"


async def _redrive(
    bus: OperatorBus,
    dead_letters: Sequence[DeadLetter],
    arguments: argparse.Namespace,
    queues: Queues,
) -> int:
    ids = set(arguments.id)
    chosen_letters = [
        dead_letter
        for dead_letter in dead_letters
        if arguments.all or dead_letter.letter.peeked.message_id in ids
    ]
    missing_ids = ids - {dead_letter.letter.peeked.message_id for dead_letter in chosen_letters}
    if missing_ids:
        names = ", ".join(sorted(missing_ids))
        raise NotPossibleError(f"there is no dead letter {names}: nothing was sent")
    plans, reasons = redriving.redrive_safe(
        [(dead_letter.letter, dead_letter.verdict) for dead_letter in chosen_letters], queues
    )
    return await moving.carry_out(
        bus,
        plans,
        reasons=reasons,
        arguments=arguments,
        heading=f"resend of {in_words(len(plans))}",
    )


VERBS = (
    Subcommand.with_store(
        "dlq",
        "dead letters of every queue, each with its order",
        description=DLQ,
        add_arguments=_add_dlq,
        prepare=_dlq,
    ),
)
