"""The ``sas`` command. Each module has the verbs of one purpose, in its ``VERBS``.

- Orders: ``submit`` sends them (with ``submission`` and ``reading``). ``listing`` lists and exports
  many, ``look`` shows one, and ``why`` explains one. ``act`` and ``callback`` change orders.
- The system: ``watch`` shows its state, ``health`` shows circuits and incidents, and ``doctor``
  checks settings and rights.
- Messages: ``inboxes`` has the alerts and the rejected messages, ``dlq`` the dead letters, and
  ``queues`` any queue. They send messages again with ``moving``.
- A project: ``new`` writes one, ``infra`` what deploys it. ``workflows`` checks a deploy. ``sim``
  simulates workflows.
- ``desk`` starts the page. ``docs`` prints the documentation.

All of them share ``arguments``, ``application``, ``selection`` (which orders) and ``output``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from sas.cli import (
    act,
    callback,
    desk,
    dlq,
    docs,
    doctor,
    health,
    inboxes,
    infra,
    listing,
    look,
    new,
    queues,
    sim,
    submit,
    watch,
    why,
    workflows,
)
from sas.cli.arguments import Subcommand, system_environment
from sas.cli.output import INTERRUPTED, OutputError
from sas.config import SettingError
from sas.distribution import lacking, version
from sas.operate.errors import UNAVAILABLE, USAGE, CommandError, UsageError

VERBS: Sequence[Subcommand] = (
    *submit.VERBS,
    *listing.VERBS,
    *look.VERBS,
    *why.VERBS,
    *act.VERBS,
    *callback.VERBS,
    *watch.VERBS,
    *doctor.VERBS,
    *health.VERBS,
    *inboxes.VERBS,
    *dlq.VERBS,
    *queues.VERBS,
    *workflows.VERBS,
    *sim.VERBS,
    *desk.VERBS,
    *new.VERBS,
    *infra.VERBS,
    *docs.VERBS,
)
EPILOG = f"""\
exit codes:
  0 done  1 not done, not possible, or an order did not complete  {USAGE} bad usage or input
  {UNAVAILABLE} Service Bus or Storage did not answer or refused  {INTERRUPTED} interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    # The command reports errors in its own sentences. The SDK's log would repeat them on stderr.
    logging.getLogger("azure").addHandler(logging.NullHandler())
    _prepare_output()
    try:
        parser = build_parser()
        arguments = parser.parse_args(argv)
        arguments.parser = parser
        if arguments.verb is None:
            parser.print_help()
            return 0
        verb: Subcommand = arguments.verb
        with system_environment(verb):
            code = _run(verb, arguments)
        sys.stdout.flush()
    except CommandError as error:
        print(f"sas: {error}", file=sys.stderr)  # noqa: T201  # a command prints
        if isinstance(error, OutputError):
            _stop_output()
        return error.exit_code
    except SettingError as error:
        print(f"sas: {error}", file=sys.stderr)  # noqa: T201  # a command prints
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, such as head or a pager, has ended.
        _stop_output()
        return 1
    return code


def _run(verb: Subcommand, arguments: argparse.Namespace) -> int:
    """Run a verb, and return its exit code.

    Raises:
        UsageError: a package is missing; the text says which extra to install.
    """
    try:
        return verb.run(arguments)
    except ImportError as error:
        extra = verb.name if verb.name in {"desk", "sim"} else "cli"
        explanation = lacking(error, extra)
        if explanation is error:
            raise
        raise UsageError(str(explanation)) from error


def _prepare_output() -> None:
    """Make sure that stdout exists, and that stdout and stderr take any text."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # stays open
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _stop_output() -> None:
    """Discard the text that is still in the buffer, because the last flush would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="sas",
        description="Scheduler Agent Supervisor: submit orders and follow them to their end,\n"
        "see what became of them, and act when one fails (sas docs operating).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sas {_version()}")
    parser.set_defaults(verb=None)
    verbs = parser.add_subparsers(metavar="VERB")
    for verb in VERBS:
        subparser = verbs.add_parser(
            verb.name,
            help=verb.summary,
            description=verb.description,
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_arguments(subparser)
        subparser.set_defaults(verb=verb)
    return parser


def _version() -> str:
    project_file = Path(__file__).parents[2] / "pyproject.toml"
    return f"{version()} (a working copy)" if project_file.exists() else version()
