"""``sas alerts``, ``sas rejected`` and ``sas dlq``: what lies in the queues for an operator."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sas.cli import arguments as args
from sas.cli import output, queues, selection, workflows
from sas.cli.arguments import Verb, Work
from sas.cli.output import time_of
from sas.codec.outward import AlertMessage, RejectedMessage
from sas.codec.record import to_line
from sas.config import SettingError, read_queues
from sas.domain.ids import key_time
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.operate import letters
from sas.operate.errors import NotPossibleError, UnavailableError, UsageError
from sas.operate.letters import READ_MAX, WHY, WHY_TEXT, Fate, Letter, Verdict
from sas.ports import (
    BusUnavailableError,
    Move,
    OperatorBus,
    Peeked,
    StateStore,
    UndeliverableError,
)

Record = dict[str, Any]
OnBus = Callable[[OperatorBus, Queues], Awaitable[int]]
FOLLOW_S = 2.0
ASK_ABOVE = 10


def _queues() -> Queues:
    try:
        return read_queues(os.environ)
    except SettingError as wrong:
        raise UsageError(str(wrong)) from None


def _on_bus(arguments: argparse.Namespace, work: OnBus) -> int:
    """Run a verb that needs the bus alone; return the exit code."""
    own = _queues()

    async def run() -> int:
        async with args.open_bus(args.read_bus(arguments, os.environ)) as bus:
            try:
                return await work(bus, own)
            except (BusUnavailableError, UndeliverableError) as failed:
                raise UnavailableError(str(failed)) from None

    return asyncio.run(run())


def _since(arguments: argparse.Namespace) -> datetime | None:
    return selection.moment(arguments.since) if arguments.since else None


def _add_choice(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--since", metavar="WHEN", help="only since then: 30m, 1h, 2d, or a time")
    parser.add_argument(
        "--limit",
        type=args.number(what, 1, READ_MAX, whole=True),
        default=50,
        metavar="N",
        help=f"at most N {what} (default: 50)",
    )


def _add_sending(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dry-run", action="store_true", help="only show what would be sent")
    add("--yes", action="store_true", help=f"do not ask (it asks above {ASK_ABOVE} messages)")


# -- sas alerts -------------------------------------------------------------------------------

ALERTS = """\
Show the alerts on operator-alerts, the newest first: what happened, to which order, and what to do.
Nothing is removed: sas queues remove operator-alerts --id ID does that.

--follow shows those that lie there, the oldest first, then each new one, until Ctrl-C.

You need the role Azure Service Bus Data Receiver on the queue. At most 1,000 alerts are read.

  sas alerts --since 1h
  sas alerts --follow --json
"""


def _add_alerts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--follow", action="store_true", help="go on with each new alert")
    _add_choice(parser, "alerts")
    args.add_json(parser)
    args.add_connection(parser)


def _alerts(arguments: argparse.Namespace) -> int:
    since = _since(arguments)

    async def show(bus: OperatorBus, own: Queues) -> int:
        found = _alerts_of(await bus.peek(own.alerts, READ_MAX), since)
        limit = int(arguments.limit)
        if not arguments.follow:
            for one in found[::-1][:limit]:
                _say_alert(*one, as_json=arguments.json)
            if not arguments.json:
                output.say(_counted(len(found), "alert", "alerts", min(limit, len(found))))
            return 0
        seen: set[tuple[int, str]] = set()
        while True:
            for one in found[-limit:] if not seen else found:
                if (one[0].sequence, one[0].message_id) not in seen:
                    _say_alert(*one, as_json=arguments.json)
            seen |= {(one.sequence, one.message_id) for one, _ in found}
            await asyncio.sleep(FOLLOW_S)
            found = _alerts_of(await bus.peek(own.alerts, READ_MAX), since)

    return _on_bus(arguments, show)


def _alerts_of(
    found: Sequence[Peeked], since: datetime | None
) -> list[tuple[Peeked, AlertMessage | None]]:
    """Return the alerts since then, the oldest first."""
    right = [one for one in found if since is None or one.enqueued_at >= since]
    return [(one, letters.alert_of(one)) for one in sorted(right, key=lambda one: one.sequence)]


def _say_alert(one: Peeked, alert: AlertMessage | None, *, as_json: bool) -> None:
    if as_json:
        output.say(to_line(_alert_record(one, alert)))
        return
    if alert is None:
        text = one.body.decode(errors="replace")[:200]
        output.say(output.row((time_of(one.enqueued_at), "not an alert of this version", text)))
        return
    about = alert.order_id or alert.scope or "-"
    kind = f"{alert.kind} ({alert.cleared})" if alert.cleared else alert.kind
    said = [time_of(one.enqueued_at), kind, about, alert.text]
    output.say(output.row([*said, f"`{alert.command}`"] if alert.command else said))


def _alert_record(one: Peeked, alert: AlertMessage | None) -> Record:
    return {
        "MessageId": one.message_id,
        "EnqueuedAt": key_time(one.enqueued_at),
        "Kind": alert.kind if alert else None,
        "OrderID": alert.order_id if alert else None,
        "Step": alert.step if alert else None,
        "Text": alert.text if alert else one.body.decode(errors="replace"),
        "Scope": alert.scope if alert else None,
        "Agent": alert.agent if alert else None,
        "Attempts": alert.attempts if alert else None,
        "Error": {"Code": alert.error.code, "Message": alert.error.message}
        if alert and alert.error
        else None,
        "Command": alert.command if alert else None,
    }


# -- sas rejected -----------------------------------------------------------------------------

REJECTED = """\
Work with the messages on orders-rejected: orders and other messages that could not be used.

  list      all, the newest first, with the reason
  show ID   one of them; --content shows its body too (it may be personal)
  resend    send messages again to the queue that refused them, then remove them here: those named
            by ID, or --all. Repair the cause first. An order that was given up gets a new
            submission_id. --to names another queue

An ID is that of the message, or the id of its order.

  sas rejected list --since 1d
  sas rejected show NW-10248
  sas rejected resend rejected/0f3c.../1 --dry-run
"""


def _add_rejected(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=["list", "show", "resend"], default="list")
    parser.add_argument("id", nargs="*", metavar="ID", help="of the message, or of its order")
    parser.add_argument("--all", action="store_true", help="resend: all")
    parser.add_argument("--to", metavar="QUEUE", help="resend: the queue (default: its own)")
    parser.add_argument("--content", action="store_true", help="show: the body too")
    _add_sending(parser)
    _add_choice(parser, "messages")
    args.add_json(parser)
    args.add_connection(parser)


def _rejected(arguments: argparse.Namespace) -> int:
    action, since = arguments.action, _since(arguments)
    if action == "list" and arguments.id:
        raise UsageError("list takes no ID: sas rejected show ID shows one")
    if action == "show" and len(arguments.id) != 1:
        raise UsageError("give one ID: sas rejected show ID")
    if action == "resend" and bool(arguments.id) == arguments.all:
        raise UsageError("give one ID or more, or --all")

    async def run(bus: OperatorBus, own: Queues) -> int:
        found = await bus.peek(own.rejected, READ_MAX)
        if action == "resend":
            return await _resend(bus, arguments, own, found)
        parts = [(one, letters.rejected_of(one)) for one in found]
        said = [(one, part) for one, part in parts if part is None or part.part == 1]
        if action == "show":
            return _show_rejected(said, arguments)
        right = [(one, part) for one, part in said if since is None or one.enqueued_at >= since]
        return _list_rejected(right[::-1], arguments)

    return _on_bus(arguments, run)


def _list_rejected(
    found: Sequence[tuple[Peeked, RejectedMessage | None]], arguments: argparse.Namespace
) -> int:
    shown = found[: int(arguments.limit)]
    if arguments.json:
        for one, part in shown:
            output.say(to_line(_rejected_record(one, part, content=False)))
        return 0
    rows = [
        (
            time_of(one.enqueued_at),
            (part.order_id if part else None) or "-",
            part.reason if part else "-",
            part.source_queue if part else "-",
            one.message_id,
        )
        for one, part in shown
    ]
    below = [[part.description if part else "not a rejected message"] for _, part in shown]
    if rows:
        for line in output.table(("Since", "Order", "Reason", "Source", "MessageId"), rows, below):
            output.say(line)
    output.say(_counted(len(found), "rejected message", "rejected messages", len(shown)))
    return 0


def _show_rejected(
    found: Sequence[tuple[Peeked, RejectedMessage | None]], arguments: argparse.Namespace
) -> int:
    name = arguments.id[0]
    own = [pair for pair in found if _is_named(*pair, {name})]
    if not own:
        raise NotPossibleError(_not_there([name]))
    one, part = own[-1]
    if arguments.json:
        output.say(to_line(_rejected_record(one, part, content=arguments.content)))
        return 0
    pairs = [("message", one.message_id), ("since", time_of(one.enqueued_at))]
    if part is not None:
        pairs += [
            ("order", part.order_id or "-"),
            ("reason", f"{part.reason}: {part.description}"),
            ("from", part.source_queue),
            ("correlation", part.correlation_id or ""),
            ("parts", str(part.parts) if part.parts > 1 else ""),
        ]
    if arguments.content:
        pairs.append(("body", part.body if part else one.body.decode(errors="replace")))
    again = f"`sas rejected resend {one.message_id}`"
    pairs.append(("next", f"correct it and submit it again; if its cause was outside, {again}"))
    for line in output.facts(pairs):
        output.say(line)
    return 0


def _rejected_record(one: Peeked, part: RejectedMessage | None, *, content: bool) -> Record:
    said: Record = {
        "MessageId": one.message_id,
        "EnqueuedAt": key_time(one.enqueued_at),
        "OrderID": part.order_id if part else None,
        "CorrelationID": part.correlation_id if part else None,
        "Reason": part.reason if part else None,
        "Description": part.description if part else None,
        "Source": part.source_queue if part else None,
        "Parts": part.parts if part else 1,
    }
    body = part.body if part else one.body.decode(errors="replace")
    return said | ({"Body": body} if content else {})


def _is_named(one: Peeked, part: RejectedMessage | None, names: set[str]) -> bool:
    return one.message_id in names or (part is not None and part.order_id in names)


def _not_there(names: Sequence[str]) -> str:
    return f"there is no {', '.join(names)} among the first {READ_MAX:,} messages"


async def _resend(
    bus: OperatorBus, arguments: argparse.Namespace, own: Queues, found: Sequence[Peeked]
) -> int:
    parts = [(one, letters.rejected_of(one)) for one in found]
    ids = [one.message_id for one, part in parts if _is_named(one, part, set(arguments.id))]
    known = {name for one, part in parts for name in (one.message_id, part and part.order_id)}
    missing = [name for name in arguments.id if name not in known]
    if missing:
        raise NotPossibleError(f"{_not_there(missing)}: nothing was sent")
    moves, left = queues.moves_of(found, _redrive_of(own.rejected, ids, arguments), own)
    return await _move(bus, {own.rejected: moves}, left, arguments)


def _redrive_of(
    path: str, ids: Sequence[str], arguments: argparse.Namespace, *, dead: bool = False
) -> argparse.Namespace:
    """Return the arguments of ``sas queues redrive`` for these messages of a queue."""
    return argparse.Namespace(
        name=path.removesuffix(DEAD_LETTER_SUBQUEUE),
        dead_letter=dead,
        id=list(ids),
        all=not ids,
        to=getattr(arguments, "to", None),
    )


async def _move(
    bus: OperatorBus,
    moves: Mapping[str, Sequence[Move]],
    left: Sequence[str],
    arguments: argparse.Namespace,
) -> int:
    """Show what would be sent, ask, send; return the exit code: 1 if a message stays."""
    count = sum(map(len, moves.values()))
    if not arguments.json:
        output.say(f"resend of {_messages(count)}")
    for path, some in moves.items():
        for move in some:
            _say_move(path, move, as_json=arguments.json, dry_run=arguments.dry_run)
    for line in left:
        output.complain(f"sas: {output.one_line(line)}")
    if not count or arguments.dry_run:
        return 1 if left else 0
    asks = count > ASK_ABOVE and not arguments.yes
    if asks and not output.confirmed(f"send {_messages(count)} again"):
        return 1
    return await _send(bus, moves, count, as_json=arguments.json) or (1 if left else 0)


async def _send(
    bus: OperatorBus, moves: Mapping[str, Sequence[Move]], count: int, *, as_json: bool
) -> int:
    sent = removed = 0
    try:
        for path, some in moves.items():
            async with aclosing(bus.move(path, some)) as moving:
                async for is_removed in moving:
                    sent, removed = sent + 1, removed + is_removed
    except BaseException:
        output.complain(f"sas: at least {sent:,} of {count:,} were sent; to repeat loses nothing")
        raise
    if not as_json:
        output.say(f"sent {sent:,} of {count:,}, removed {removed:,}")
    if removed < count:
        output.complain(
            "sas: the others were gone, or another reader has them: look again, and repeat it"
        )
    return 1 if removed < count else 0


def _say_move(path: str, move: Move, *, as_json: bool, dry_run: bool) -> None:
    message = move.message
    if message is None:
        return
    order_id = letters.order_of(message.body)
    if as_json:
        said = {"OrderID": order_id, "From": path, "To": message.queue}
        output.say(to_line(said | {"MessageId": message.message_id, "DryRun": dry_run}))
    else:
        about = order_id or "no order"
        output.say(output.row(("", f"{about:<20}", f"{path} -> {message.queue}")))


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _counted(count: int, one: str, many: str, shown: int) -> str:
    words = f"no {one}" if not count else f"1 {one}" if count == 1 else f"{count:,} {many}"
    return words + (f" ({shown:,} shown; --limit shows more)" if shown < count else "")


# -- sas dlq ----------------------------------------------------------------------------------

DLQ = """\
Work with dead letters: messages that a queue gave up, on dead-letters and in the dead-letter
subqueue of every queue. Each is joined with its order:

  safe to redrive   nothing was recorded of it, or a step still waits for it
  already done      its work is recorded, or is over: to send it again would change nothing
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
    _add_sending(parser)
    _add_choice(parser, "messages")
    args.add_json(parser)
    args.add_connection(parser)


def _dlq(arguments: argparse.Namespace) -> Work:
    action, since, own = arguments.action, _since(arguments), _queues()
    if action == "list" and arguments.id:
        raise UsageError("list takes no ID: sas dlq explain ID explains one")
    if action == "explain" and len(arguments.id) != 1:
        raise UsageError("give one ID: sas dlq explain ID")
    if action == "redrive" and bool(arguments.id) == arguments.all:
        raise UsageError("give one ID or more, or --all")
    agents = letters.agents_here(own)
    if arguments.app:
        agents |= workflows.load(arguments.app).agents()
    endpoint = args.read_bus(arguments, os.environ)

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
        said = _counted(len(joined), "dead letter", "dead letters", len(shown))
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
            ("lies in", f"{letter.path}, {time_of(letter.since)}"),
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
    left: list[str] = []
    safe: dict[str, list[Peeked]] = {}
    for one in wanted:
        letter, name = one.letter, one.letter.peeked.message_id
        if letter.path == own.dead_letters:
            left.append(f"{name} stays: the function of {own.dead_letters} takes it")
        elif one.verdict.fate is not Fate.SAFE:
            left.append(f"{name} stays: {one.verdict.fate.value}: {one.verdict.why}")
        else:
            safe.setdefault(letter.path, []).append(letter.peeked)
    moves: dict[str, list[Move]] = {}
    for path, found in safe.items():
        moves[path], stay = queues.moves_of(found, _redrive_of(path, [], arguments, dead=True), own)
        left += stay
    return await _move(bus, moves, left, arguments)


VERBS = (
    Verb("alerts", "show what the system told its operators", ALERTS, _add_alerts, _alerts),
    Verb(
        "rejected",
        "messages that could not be used: list, show, send again",
        REJECTED,
        _add_rejected,
        _rejected,
    ),
    Verb.with_store("dlq", "dead letters of every queue, each with its order", DLQ, _add_dlq, _dlq),
)
