"""Which orders of one state a verb is about, by its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sas.cli import finding
from sas.cli.errors import UsageError
from sas.cli.finding import Wanted


def add_arguments(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    states: Sequence[str],
    *,
    default: str | None,
    limit: int,
) -> None:
    """Add what chooses among orders."""
    said = f" (default: {default})" if default else ""
    parser.add_argument(
        "--state", choices=states, default=default, help=f"all that are so, as sas list shows{said}"
    )
    parser.add_argument("--since", metavar="WHEN", help="in that state since then or later, UTC")
    parser.add_argument("--workflow", metavar="NAME", help="of this workflow alone")
    parser.add_argument(
        "--fingerprint", type=_fingerprint, metavar="STEP/CODE", help="failed in this way alone"
    )
    parser.add_argument(
        "--limit", type=_count, default=limit, metavar="N", help=f"at most (default: {limit:,})"
    )


def read(arguments: argparse.Namespace) -> Wanted | None:
    """Return what is looked for; None where no state is named.

    Raises:
        UsageError: what is said does not go together.
    """
    choosing = arguments.workflow or arguments.fingerprint or arguments.since
    if arguments.state is None:
        if choosing:
            raise UsageError(
                "--workflow, --fingerprint and --since choose among many: they go with --state"
            )
        return None
    if arguments.fingerprint and arguments.state != "error":
        raise UsageError("--fingerprint chooses among orders in Error: it goes with --state error")
    since = finding.moment(arguments.since) if arguments.since else None
    return Wanted(
        arguments.state, arguments.workflow, arguments.fingerprint, arguments.limit, since
    )


def _count(text: str) -> int:
    whole = text.isascii() and text.isdecimal() and len(text) <= 7
    if not whole or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: give a number from 1 to 1000000")
    return int(text)


def _fingerprint(text: str) -> str:
    if not all(text.partition("/")):
        raise argparse.ArgumentTypeError(f"{text!r}: give STEP/CODE, as sas list shows it")
    return text
