"""The arguments that choose orders: ``--state``, ``--since`` and others."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sas.cli import output
from sas.cli.arguments import number
from sas.operate.errors import UsageError
from sas.operate.finding import OrderQuery

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"([0-9]{1,9})([smhdw])")


def add_arguments(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    states: Sequence[str],
    *,
    default: str | None,
    limit: int,
) -> None:
    """Add the arguments that choose orders. ``default`` is the default of ``--state``."""
    default_text = f" (default: {default})" if default else ""
    parser.add_argument(
        "--state", choices=states, default=default, help=f"orders in this state{default_text}"
    )
    parser.add_argument(
        "--since",
        metavar="WHEN",
        help="only orders in that state since then or later: 30m, 1h, 2d, or a time in UTC",
    )
    parser.add_argument("--workflow", metavar="NAME", help="only orders of this workflow")
    parser.add_argument(
        "--fingerprint",
        type=_step_and_code,
        metavar="STEP/CODE",
        help="only orders that failed in this way, as sas list shows it",
    )
    parser.add_argument(
        "--limit",
        type=number("a number", 1, 1_000_000, whole=True),
        default=limit,
        metavar="N",
        help=f"at most N orders (default: {limit:,})",
    )


def read(arguments: argparse.Namespace) -> OrderQuery | None:
    """Return which orders the arguments choose; None if they name no state.

    Raises:
        UsageError: the arguments do not go together.
    """
    if arguments.state is None:
        if arguments.workflow or arguments.fingerprint or arguments.since:
            raise UsageError(
                "--workflow, --fingerprint and --since choose among many: they go with --state"
            )
        return None
    if arguments.fingerprint and arguments.state != "error":
        raise UsageError("--fingerprint chooses among orders in Error: it goes with --state error")
    since = moment(arguments.since) if arguments.since else None
    return OrderQuery(
        state=arguments.state,
        workflow=arguments.workflow,
        fingerprint=arguments.fingerprint,
        limit=arguments.limit,
        since=since,
    )


def moment(text: str) -> datetime:
    """Return the moment that an argument names, such as ``30m`` (30 minutes ago) or a time.

    A time without a zone is in UTC.

    Raises:
        UsageError: the text names no moment.
    """
    span = _SPAN.fullmatch(text)
    if span:
        count, unit = span.groups()
        try:
            return output.now() - timedelta(**{_UNITS[unit]: int(count)})
        except (OverflowError, ValueError):
            pass
    try:
        instant = datetime.fromisoformat(text)
        instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
        return instant.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text[:40]!r} is not a time: give one like 1h, 2026-11-21 or 2026-11-21T03:00"
        ) from None


def _step_and_code(text: str) -> str:
    if not all(text.partition("/")):
        raise argparse.ArgumentTypeError(f"{text!r}: give STEP/CODE, as sas list shows it")
    return text
