"""``sas alerts`` and ``sas rejected``: the messages in the queues for an operator."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from sas.cli import arguments as args
from sas.cli import moving, output, selection
from sas.cli.arguments import Subcommand
from sas.cli.moving import in_words
from sas.cli.output import Record, time_of
from sas.codec.external import AlertMessage, RejectedMessage
from sas.codec.record import to_line
from sas.codec.strict import Reason
from sas.config import read_queues
from sas.domain.ids import key_time
from sas.domain.order import OrderState
from sas.domain.queues import Queues
from sas.operate import finding, letters, redriving
from sas.operate.errors import NotPossibleError, ServiceUnavailableError, UsageError
from sas.operate.letters import READ_MAX
from sas.ports import (
    BusUnavailableError,
    OperatorBus,
    Peeked,
    UndeliverableError,
)

BusWork = Callable[[OperatorBus, Queues], Awaitable[int]]
"""A function of a verb that works on the bus and returns the exit code."""
FOLLOW_S = 2.0
"""Seconds between two looks of ``sas alerts --follow``."""


def _on_bus(work: BusWork) -> int:
    """Run a verb that needs the bus, but no store. Return the exit code."""
    queues = read_queues(os.environ)

    async def run() -> int:
        async with args.open_bus(args.read_bus(os.environ)) as bus:
            try:
                return await work(bus, queues)
            except (BusUnavailableError, UndeliverableError) as error:
                raise ServiceUnavailableError(str(error)) from None

    return asyncio.run(run())


def since_when(arguments: argparse.Namespace) -> datetime | None:
    """Return the moment that ``--since`` names; None without ``--since``."""
    return selection.moment(arguments.since) if arguments.since else None


def add_choice(parser: argparse.ArgumentParser, noun: str) -> None:
    """Add --since and --limit."""
    parser.add_argument("--since", metavar="WHEN", help="only since then: 30m, 1h, 2d, or a time")
    parser.add_argument(
        "--limit",
        type=args.number(noun, 1, READ_MAX, whole=True),
        default=50,
        metavar="N",
        help=f"at most N {noun} (default: 50)",
    )


def count_text(count: int, singular: str, plural: str, shown_count: int) -> str:
    """Return in words how many messages there are, and how many of them are shown."""
    words = (
        f"no {singular}" if not count else f"1 {singular}" if count == 1 else f"{count:,} {plural}"
    )
    return words + (f" ({shown_count:,} shown; --limit shows more)" if shown_count < count else "")


# -- sas alerts -------------------------------------------------------------------------------

ALERTS = """\
Show the alerts on operator-alerts, the newest first: what happened, to which order, and what to do.
If the order is by now Processed or Compensated, the line says "repaired". Nothing is removed:
sas queues remove operator-alerts --id ID does that.

--follow shows the alerts in the queue, the oldest first, then each new one, until Ctrl-C.

You need the role Azure Service Bus Data Receiver on the queue. At most 1,000 alerts are read.

  sas alerts --since 1h
  sas alerts --follow --json
"""


def _add_alerts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--follow", action="store_true", help="go on with each new alert")
    add_choice(parser, "alerts")
    args.add_json(parser)


def _alerts(arguments: argparse.Namespace) -> int:
    since = since_when(arguments)

    async def show(bus: OperatorBus, queues: Queues) -> int:
        alerts = _alerts_of(await bus.peek(queues.alerts, READ_MAX), since)
        limit = int(arguments.limit)
        if not arguments.follow:
            await _say_alerts(alerts[::-1][:limit], as_json=arguments.json)
            if not arguments.json:
                output.say(count_text(len(alerts), "alert", "alerts", min(limit, len(alerts))))
            return 0
        shown_ids: set[tuple[int, str]] = set()
        while True:
            new_alerts = [
                (message, alert)
                for message, alert in (alerts if shown_ids else alerts[-limit:])
                if (message.sequence, message.message_id) not in shown_ids
            ]
            await _say_alerts(new_alerts, as_json=arguments.json)
            shown_ids |= {(message.sequence, message.message_id) for message, _ in alerts}
            await asyncio.sleep(FOLLOW_S)
            alerts = _alerts_of(await bus.peek(queues.alerts, READ_MAX), since)

    return _on_bus(show)


def _alerts_of(
    messages: Sequence[Peeked], since: datetime | None
) -> list[tuple[Peeked, AlertMessage | None]]:
    """Return the messages that came at ``since`` or later with their alerts, the oldest first."""
    recent = [message for message in messages if since is None or message.enqueued_at >= since]
    return [
        (message, letters.alert_of(message))
        for message in sorted(recent, key=lambda message: message.sequence)
    ]


async def _say_alerts(
    alerts: Sequence[tuple[Peeked, AlertMessage | None]], *, as_json: bool
) -> None:
    """Print alerts, each with the state of its order if that was repaired."""
    ids = dict.fromkeys(alert.order_id for _, alert in alerts if alert and alert.order_id)
    orders = await args.load_if_possible(list(ids)) if ids else {}
    for message, alert in alerts:
        order = orders.get(alert.order_id or "") if alert else None
        state = None
        if alert and order:
            state = letters.state_after(
                alert,
                order.process_state,
                since=finding.since(order),
                submitted_at=order.details.submitted_at,
            )
        _say_alert(message, alert, state, as_json=as_json)


def _say_alert(
    message: Peeked, alert: AlertMessage | None, state: OrderState | None, *, as_json: bool
) -> None:
    if as_json:
        now = {"Now": state.value if state else None}
        output.say(to_line(_alert_record(message, alert) | now))
        return
    if alert is None:
        text = message.body.decode(errors="replace")[:200]
        output.say(output.row((time_of(message.enqueued_at), "not an alert of this version", text)))
        return
    subject = alert.order_id or alert.scope or "-"
    kind = f"{alert.kind} ({alert.cleared})" if alert.cleared else alert.kind
    cells = [time_of(message.enqueued_at), kind, subject, letters.who_worked(alert), alert.text]
    cells.append(letters.repair_text(state) if state else "")
    cells.append(f"`{alert.command}`" if alert.command else "")
    output.say(output.row([cell for cell in cells if cell]))


def _alert_record(message: Peeked, alert: AlertMessage | None) -> Record:
    return {
        "MessageId": message.message_id,
        "EnqueuedAt": key_time(message.enqueued_at),
        "Kind": alert.kind if alert else None,
        "OrderID": alert.order_id if alert else None,
        "Step": alert.step if alert else None,
        "Text": alert.text if alert else message.body.decode(errors="replace"),
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
  remove    delete messages by ID, without a way back: they need no more work

ID is the id of the message, or of its order.

  sas rejected list --since 1d
  sas rejected show NW-10248
  sas rejected resend rejected/0f3c.../1 --dry-run
  sas rejected remove NW-10248
"""


def _add_rejected(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", choices=["list", "show", "resend", "remove"], default="list"
    )
    parser.add_argument("id", nargs="*", metavar="ID", help="of the message, or of its order")
    parser.add_argument("--all", action="store_true", help="resend: all")
    parser.add_argument("--to", metavar="QUEUE", help="resend: the queue (default: its own)")
    parser.add_argument("--content", action="store_true", help="show: the body too")
    moving.add_arguments(parser)
    add_choice(parser, "messages")
    args.add_json(parser)


def _rejected(arguments: argparse.Namespace) -> int:
    action, since = arguments.action, since_when(arguments)
    if action == "list" and arguments.id:
        raise UsageError("list takes no ID: sas rejected show ID shows one")
    if action == "show" and len(arguments.id) != 1:
        raise UsageError("give one ID: sas rejected show ID")
    if action == "remove" and (arguments.all or not arguments.id):
        raise UsageError("give one ID or more: remove takes single messages")
    if action == "resend" and bool(arguments.id) == arguments.all:
        raise UsageError("give one ID or more, or --all")

    async def run(bus: OperatorBus, queues: Queues) -> int:
        messages = await bus.peek(queues.rejected, READ_MAX)
        if action in {"resend", "remove"}:
            return await _move(bus, arguments, queues, messages)
        parts = [(message, letters.rejected_of(message)) for message in messages]
        first_parts = [(message, part) for message, part in parts if part is None or part.part == 1]
        if action == "show":
            return _show_rejected(first_parts, arguments)
        recent = [
            (message, part)
            for message, part in first_parts
            if since is None or message.enqueued_at >= since
        ]
        return _list_rejected(recent[::-1], arguments)

    return _on_bus(run)


def _list_rejected(
    pairs: Sequence[tuple[Peeked, RejectedMessage | None]], arguments: argparse.Namespace
) -> int:
    page = pairs[: int(arguments.limit)]
    if arguments.json:
        for message, part in page:
            output.say(to_line(_rejected_record(message, part, content=False)))
        return 0
    rows = [
        (
            time_of(message.enqueued_at),
            (part.order_id if part else None) or "-",
            part.reason if part else "-",
            part.source_queue if part else "-",
            message.message_id,
        )
        for message, part in page
    ]
    below = [[part.description if part else "not a rejected message"] for _, part in page]
    if rows:
        for line in output.table(("Since", "Order", "Reason", "Source", "MessageId"), rows, below):
            output.say(line)
    output.say(count_text(len(pairs), "rejected message", "rejected messages", len(page)))
    return 0


def _show_rejected(
    pairs: Sequence[tuple[Peeked, RejectedMessage | None]], arguments: argparse.Namespace
) -> int:
    name = arguments.id[0]
    matches = [(message, part) for message, part in pairs if _is_named(message, part, {name})]
    if not matches:
        raise NotPossibleError(_not_there([name]))
    message, part = matches[-1]
    if arguments.json:
        output.say(to_line(_rejected_record(message, part, content=arguments.content)))
        return 0
    facts = [("message", message.message_id), ("since", time_of(message.enqueued_at))]
    if part is not None:
        facts += [
            ("order", part.order_id or "-"),
            ("reason", f"{part.reason}: {part.description}"),
            ("from", part.source_queue),
            ("correlation", part.correlation_id or ""),
            ("parts", str(part.parts) if part.parts > 1 else ""),
        ]
    if arguments.content:
        facts.append(("body", part.body if part else message.body.decode(errors="replace")))
    command = f"`sas rejected resend {message.message_id}`"
    facts.append(("next", f"{_todo(part)}; if its cause was outside, {command}"))
    for line in output.facts(facts):
        output.say(line)
    return 0


def _todo(part: RejectedMessage | None) -> str:
    queues = read_queues(os.environ)
    if part and letters.is_internal(part, queues):
        return "undo or resubmit the order"
    if part and letters.is_outgoing(part, queues):
        return f"its order goes on: let {part.source_queue} be read, and tell its reader"
    if part and part.reason == Reason.ORDER_ID_TAKEN:
        return "the first order goes on: submit this one with an id of its own"
    return "correct it and submit it again"


def _rejected_record(message: Peeked, part: RejectedMessage | None, *, content: bool) -> Record:
    record: Record = {
        "MessageId": message.message_id,
        "EnqueuedAt": key_time(message.enqueued_at),
        "OrderID": part.order_id if part else None,
        "CorrelationID": part.correlation_id if part else None,
        "Reason": part.reason if part else None,
        "Description": part.description if part else None,
        "Source": part.source_queue if part else None,
        "Parts": part.parts if part else 1,
    }
    body = part.body if part else message.body.decode(errors="replace")
    return record | ({"Body": body} if content else {})


def _is_named(message: Peeked, part: RejectedMessage | None, names: set[str]) -> bool:
    return message.message_id in names or (part is not None and part.order_id in names)


def _not_there(names: Sequence[str]) -> str:
    return f"there is no {', '.join(names)} among the first {READ_MAX:,} messages"


async def _move(
    bus: OperatorBus, arguments: argparse.Namespace, queues: Queues, messages: Sequence[Peeked]
) -> int:
    """Send messages again, or remove them. Return the exit code."""
    parts = [(message, letters.rejected_of(message)) for message in messages]
    names = set(arguments.id)
    ids = [message.message_id for message, part in parts if _is_named(message, part, names)]
    known_ids = {
        name for message, part in parts for name in (message.message_id, part and part.order_id)
    }
    missing_ids = [name for name in arguments.id if name not in known_ids]
    if missing_ids:
        raise NotPossibleError(f"{_not_there(missing_ids)}: nothing was changed")
    if arguments.action == "remove":
        plans, reasons = redriving.removal(messages, queues.rejected, ids, queues)
        heading = f"removal of {in_words(len(plans))} from {queues.rejected}"
    else:
        plans, reasons = redriving.redrive(
            messages,
            queues.rejected,
            ids=None if arguments.all else ids,
            queues=queues,
            to=arguments.to,
        )
        heading = f"resend of {in_words(len(plans))}"
    return await moving.carry_out(bus, plans, reasons=reasons, arguments=arguments, heading=heading)


VERBS = (
    Subcommand(
        name="alerts",
        summary="show the alerts that the system sent",
        description=ALERTS,
        add_arguments=_add_alerts,
        run=_alerts,
    ),
    Subcommand(
        name="rejected",
        summary="messages that could not be used: list, show, send again, remove",
        description=REJECTED,
        add_arguments=_add_rejected,
        run=_rejected,
    ),
)
