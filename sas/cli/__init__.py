"""The ``sas`` command. Each verb has a file of its own, named in ``VERBS``.

A verb's module gives ``SUMMARY``, ``DESCRIPTION``, ``add_arguments(parser)`` and
``run(arguments) -> int``, the exit code. What verbs share: ``connection`` (which namespace),
``storage`` (which table), ``feed`` (input in the background), ``output`` (lines, progress);
what the operator's have in common: ``command``, ``finding``, ``intent``, ``page``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module, metadata
from io import TextIOWrapper
from pathlib import Path
from typing import Protocol, cast

from sas.cli.errors import (
    INTERRUPTED,
    TROUBLE,
    USAGE,
    NotThereError,
    OutputError,
    TroubleError,
    UsageError,
)

VERBS = (
    *("submit", "list", "show", "resubmit", "skip", "undo", "cancel", "acknowledge"),
    *("breakers", "conditions", "export", "workflows"),
)
EPILOG = f"""\
exit codes: 0 all went well; 1 some order did not; {USAGE} bad usage or input; \
{TROUBLE} Service Bus or Storage did not answer or refused; {INTERRUPTED} interrupted"""


class Verb(Protocol):
    """What the module of a verb gives."""

    SUMMARY: str
    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's own arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; return the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    # What goes wrong is said in sentences of our own, not by the SDK's log on stderr.
    logging.getLogger("azure").addHandler(logging.NullHandler())
    _prepare_output()
    try:
        arguments = build_parser().parse_args(argv)
        verb = cast("Verb", arguments.verb)
        code = verb.run(arguments)
        sys.stdout.flush()
    except (UsageError, NotThereError, TroubleError) as wrong:
        print(f"sas: {wrong}", file=sys.stderr)  # noqa: T201  # a command prints
        if isinstance(wrong, OutputError):
            _stop_output()
        return wrong.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone (head, a pager): nobody is left to tell.
        _stop_output()
        return 1
    return code


def _prepare_output() -> None:
    """See to it that any text can be printed, whatever the terminal speaks, and that there is an
    output at all.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # for good
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _stop_output() -> None:
    """Let what is still in the buffer be written nowhere: at the end it would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="sas",
        description="Scheduler Agent Supervisor: submit orders and follow them to their end; "
        "see what became of them, and lend a hand (docs/operating.md).",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"sas {_version()}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name in VERBS:
        verb = cast("Verb", import_module(f"sas.cli.{name}"))
        its_own = verbs.add_parser(
            name,
            help=verb.SUMMARY,
            description=verb.DESCRIPTION,
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_arguments(its_own)
        its_own.set_defaults(verb=verb)
    return parser


def _version() -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("scheduler-agent-supervisor")
    project = Path(__file__).parents[2] / "pyproject.toml"
    version = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]
    return f"{version} (a working copy)"
