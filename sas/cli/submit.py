"""``sas submit``: the options of the verb. ``submission`` sends the orders."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from msgspec.json import encode

from sas.cli import act, application, options, system
from sas.cli.options import value
from sas.cli.system import LiveSystem
from sas.codec.strict import MalformedError, parse
from sas.domain.queues import ForbiddenReplyQueueError, Queues
from sas.operate.errors import UsageError

REPLY_QUEUE = "SAS_REPLY_QUEUE"


def submit(  # noqa: PLR0913  one for each option
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="JSON or JSON Lines; - for stdin.", show_default=False),
    ] = None,
    *,
    order_id: Annotated[str | None, value("ID", "One order with this id.", name="--id")] = None,
    content: Annotated[str | None, value("JSON", "With --id: JSON, @FILE, or - for stdin.")] = None,
    workflow: Annotated[
        str | None,
        value("NAME", "The workflow of bare orders (default: the only one of the application)."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print what becomes of the orders.")
    ] = False,
    as_json: options.Json = False,
    urgent: Annotated[
        bool, typer.Option("--urgent", help="Let these orders overtake all others.")
    ] = False,
    patience: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=7 * 86_400,
            metavar="SECONDS",
            help="With --follow: stop when no notification came for so long.",
        ),
    ] = 300.0,
    app: options.App = None,
    reply_queue: Annotated[
        str | None,
        value("QUEUE", f"Your application's own response queue (default: {REPLY_QUEUE})."),
    ] = None,
) -> None:
    """Send orders of a file or of stdin, or one order by options.

    \b
      sas submit orders.jsonl --follow
      sas submit --id A-1 --content '{"amount": 3}' --follow

    A file has one JSON object, or JSON Lines (one object a line). Each is an order message
    {"order_id": "A-1", "workflow": "order", "order": {...}}, or a bare order {"order_id": "A-1",
    ...}: every other member is its content. With --follow each notification of these orders is a
    line on stdout, and a summary comes last. Give a response queue of your own: all notifications
    are removed from it.
    """
    if (file is None) is (order_id is None) or (order_id is None) is not (content is None):
        raise UsageError("give FILE, or - for stdin, or one order by --id ID --content JSON")
    find_workflow = cache(partial(_workflow, workflow, app))

    async def work(connected: LiveSystem) -> int:
        # Slow to import (Azure's SDK), and not needed for --help.
        from sas.cli.submission import SubmitRun  # noqa: PLC0415
        from sas.operate.submissions import Defaults, read_items  # noqa: PLC0415

        queue = _reply_queue(connected.queues, reply_queue)
        source = _opened(file) if file else one_order(order_id or "", content or "", find_workflow)
        with source as lines:
            run = SubmitRun(
                items=read_items(lines, Defaults(queue, find_workflow)),
                reply_queue=queue,
                follow=follow,
                as_json=as_json,
                urgent=urgent,
                quiet_s=patience,
            )
            return await run.work(connected)

    system.run(work)


def one_order(order_id: str, content: str, find_workflow: Callable[[], str]) -> BinaryIO:
    """Return the order message of an order that options give, as a file has it.

    Raises:
        UsageError: the content is no JSON object.
    """
    text = act.read_text(content).strip()
    try:
        is_object = isinstance(parse(text), dict)
    except MalformedError as error:
        raise UsageError(f"--content: {error}") from None
    if not is_object:
        raise UsageError("--content is not a JSON object: give an order as {...}")
    members = b'{"order_id":%s,"workflow":%s,"order":%s}'
    return BytesIO(members % (encode(order_id), encode(find_workflow()), text))


def _workflow(name: str | None, app: str | None) -> str:
    """Return the workflow of bare orders. The application is loaded only if nobody names it.

    Raises:
        UsageError: it cannot be known.
    """
    if name is not None:
        return name
    try:
        definitions = application.workflows_of(app)
    except UsageError as error:
        raise UsageError(f"the order names no workflow: give --workflow NAME ({error})") from None
    names = sorted({workflow.name for workflow in definitions})
    if len(names) == 1:
        return names[0]
    raise UsageError(
        f"the order names no workflow: give --workflow NAME. There are {', '.join(names)}"
    )


def _reply_queue(queues: Queues, name: str | None) -> str:
    """Return the response queue to use.

    Raises:
        UsageError: none is named, or it cannot be one.
    """
    reply_queue = name or os.environ.get(REPLY_QUEUE)
    if not reply_queue:
        raise UsageError(
            f"no reply queue: give --reply-queue {queues.response_prefix}NAME or set {REPLY_QUEUE}"
        )
    try:
        queues.check_reply_queue(reply_queue)
    except ForbiddenReplyQueueError as error:
        raise UsageError(str(error)) from None
    return reply_queue


def _opened(name: str) -> AbstractContextManager[BinaryIO]:
    if name == "-":
        return nullcontext(_stdin())
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise UsageError(
            f"cannot read {name}: {error.strerror}; give a file, or - for stdin"
        ) from None


def _stdin() -> BinaryIO:
    """Return stdin with a buffer of its own.

    When the interpreter ends, it locks the buffer of ``sys.stdin``. This would fail if a thread
    still waited for a line there, because that thread holds the lock.
    """
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except (OSError, ValueError, AttributeError):  # stdin is not a file, as in a test
        return sys.stdin.buffer
