"""``sas dlq``: dead letters of every queue, each joined with its order."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sas.cli import arguments as args
from sas.cli import inboxes, moving, output, workflows
from sas.cli.arguments import Verb, Work
from sas.cli.moving import in_words
from sas.cli.output import time_of
from sas.codec.record import to_line
from sas.config import read_queues
from sas.domain.ids import key_time
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.operate import letters, redriving
from sas.operate.errors import NotPossibleError, UnavailableError, UsageError
from sas.operate.letters import WHY, WHY_TEXT, Fate, Letter, Verdict
from sas.ports import BusUnavailableError, OperatorBus, StateStore, UndeliverableError

Record = dict[str, Any]

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
queues are those of --app, and of infra/queues.json in this directory; --queue adds any other.

  sas dlq list --app orders.workflows:workflows --queue responses-web-shop
  sas dlq explain MESSAGE_ID
  sas dlq redrive --all --dry-run
"""


@dataclass(frozen=True, slots=True)
class Joined:
    """A dead letter with what became of its order."""

    letter: Letter
    verdict: Verdict

    @property
    def state(self) -> str:
        """The state of its order."""
        return self.verdict.order.process_state.value if self.verdict.order else "-"

    def given_up(self) -> str:
        """Return why its queue gave it up."""
        said = self.letter.peeked.properties
        why, text = said.get(WHY, "no reason is known"), said.get(WHY_TEXT)
        return f"{why}: {text}" if text else why


def _add_dlq(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=["list", "explain", "redrive"], default="list")
    parser.add_argument("id", nargs="*", metavar="ID", help="of the message")
    parser.add_argument("--all", action="store_true", help="redrive: all that are safe")
    parser.add_argument("--app", metavar="MODULE:NAME", help="the workflows: they name the agents")
    parser.add_argument("--queue", action="append", default=[], metavar="QUEUE", help="also this")
    moving.add_arguments(parser)
    inboxes.add_choice(parser, "messages")
    args.add_json(parser)


def _dlq(arguments: argparse.Namespace) -> Work:
    action, since, own = arguments.action, inboxes.since_when(arguments), read_queues(os.environ)
    if action == "list" and arguments.id:
        raise UsageError("list takes no ID: sas dlq explain ID explains one")
    if action == "explain" and len(arguments.id) != 1:
        raise UsageError("give one ID: sas dlq explain ID")
    if action == "redrive" and bool(arguments.id) == arguments.all:
        raise UsageError("give one ID or more, or --all")
    agents = letters.agents_here(own)
    if arguments.app:
        agents |= workflows.load(arguments.app).agents()
    endpoint = args.read_bus(os.environ)

    async def run(store: StateStore) -> int:
        async with args.open_bus(endpoint) as bus:
            paths = letters.dead_letter_paths(own, sorted(agents), arguments.queue)
            read = await letters.read(bus, paths)
            if len(read.problems) == len(paths):
                raise UnavailableError(f"no queue could be read: {read.problems[paths[0]]}")
            found = sorted(read.letters, key=lambda letter: letter.since)
            right = [one for one in found if since is None or one.since >= since]
            joined = await _judged(store, right, own)
            if action == "redrive":
                try:
                    return await _redrive(bus, joined, arguments, own)
                except (BusUnavailableError, UndeliverableError) as failed:
                    raise UnavailableError(str(failed)) from None
        if action == "explain":
            return _explain(joined, arguments, own)
        return _list_dlq(joined, read.problems, arguments)

    return run


async def _judged(store: StateStore, found: Sequence[Letter], own: Queues) -> list[Joined]:
    gate = asyncio.Semaphore(letters.AT_ONCE)

    async def one(letter: Letter) -> Joined:
        async with gate:
            return Joined(letter, await letters.judge(store, letter, own))

    return list(await asyncio.gather(*map(one, found)))


def _list_dlq(
    joined: Sequence[Joined], problems: Mapping[str, str], arguments: argparse.Namespace
) -> int:
    shown = joined[: int(arguments.limit)]
    if arguments.json:
        for one in shown:
            output.say(to_line(_dlq_record(one)))
    else:
        heading = ("Since", "Queue", "Order", "State", "Fate", "MessageId")
        rows = [
            (
                time_of(one.letter.since),
                one.letter.path,
                one.letter.order_id or "-",
                one.state,
                one.verdict.fate.value,
                one.letter.peeked.message_id,
            )
            for one in shown
        ]
        below = [[f"{one.given_up()}; {one.verdict.why}"] for one in shown]
        for line in output.table(heading, rows, below) if rows else ():
            output.say(line)
        fates = Counter(one.verdict.fate.value for one in joined)
        parts = ", ".join(f"{count:,} {name}" for name, count in fates.most_common())
        said = inboxes.counted(len(joined), "dead letter", "dead letters", len(shown))
        output.say(f"{said}: {parts}" if parts else said)
    for problem in problems.values():
        output.complain(f"sas: {output.one_line(problem)}")
    return 1 if problems else 0


def _dlq_record(one: Joined) -> Record:
    letter = one.letter
    return {
        "MessageId": letter.peeked.message_id,
        "Queue": letter.path,
        "Source": letter.source,
        "Since": key_time(letter.since),
        "GivenUp": one.given_up(),
        "OrderID": letter.order_id,
        "ProcessState": one.verdict.order.process_state.value if one.verdict.order else None,
        "Fate": one.verdict.fate.value,
        "Why": one.verdict.why,
    }


def _explain(joined: Sequence[Joined], arguments: argparse.Namespace, own: Queues) -> int:
    name = arguments.id[0]
    found = [one for one in joined if one.letter.peeked.message_id == name]
    if not found:
        raise NotPossibleError(f"there is no dead letter {name}: sas dlq list shows all")
    for one in found:
        if arguments.json:
            output.say(to_line(_dlq_record(one) | {"Todo": _todo(one, own)}))
            continue
        verdict, letter = one.verdict, one.letter
        facts = (
            ("message", letter.peeked.message_id),
            ("queue", f"{letter.path}, {time_of(letter.since)}"),
            ("from", letter.source),
            ("given up", one.given_up()),
            ("order", f"{letter.order_id or 'none'}, {one.state}"),
            ("fate", f"{verdict.fate.value}: {verdict.why}"),
            ("do", _todo(one, own)),
        )
        for line in output.facts(facts):
            output.say(line)
    return 0


def _todo(one: Joined, own: Queues) -> str:
    letter, name = one.letter, one.letter.peeked.message_id
    queue = letter.path.removesuffix(DEAD_LETTER_SUBQUEUE)
    if letter.path == own.dead_letters:
        return "nothing: the function of this queue takes it; check that the function app runs"
    match one.verdict.fate:
        case Fate.SAFE:
            return f"repair the cause, then `sas dlq redrive {name}`"
        case Fate.DONE | Fate.GONE:
            return f"nothing; `sas queues remove {queue} --dead-letter --id {name}` removes it"
        case Fate.UNKNOWN:
            return f"look at it: `sas queues peek {queue} --dead-letter`"


async def _redrive(
    bus: OperatorBus, joined: Sequence[Joined], arguments: argparse.Namespace, own: Queues
) -> int:
    ids = set(arguments.id)
    wanted = [one for one in joined if arguments.all or one.letter.peeked.message_id in ids]
    missing = ids - {one.letter.peeked.message_id for one in wanted}
    if missing:
        named = ", ".join(sorted(missing))
        raise NotPossibleError(f"there is no dead letter {named}: nothing was sent")
    moves, left = redriving.redrive_safe([(one.letter, one.verdict) for one in wanted], own)
    return await moving.carry_out(
        bus, moves, left=left, arguments=arguments, heading=f"resend of {in_words(len(moves))}"
    )


VERBS = (
    Verb.with_store(
        "dlq",
        "dead letters of every queue, each with its order",
        description=DLQ,
        add_arguments=_add_dlq,
        prepare=_dlq,
    ),
)
