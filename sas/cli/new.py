"""``sas new``: write a new project."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from sas.cli import arguments as args
from sas.cli import output
from sas.cli.arguments import Subcommand
from sas.codec.record import to_line
from sas.operate.errors import UsageError
from sas.project import ProjectError, create

NEW = """\
Write a project of your own into a new directory: function_app.py, host.json, settings, a workflow
of two steps with its agents, tests, Makefile and README. It runs on the installed packages; nothing
of them is copied. `sas infra` adds what deploys it.

  sas new my-orders
  cd my-orders && make test && make up
"""


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="a directory to make")
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="install both packages from their wheels in this directory, which are copied and "
        "pinned by their hashes: for machines whose package index does not have them",
    )
    args.add_json(parser, "one JSON object instead of text")


def _new(arguments: argparse.Namespace) -> int:
    directory: Path = arguments.directory
    try:
        create(directory, arguments.wheels)
    except ProjectError as error:
        raise UsageError(str(error)) from None
    if arguments.json:
        output.say(to_line({"Project": str(directory)}))
        return 0
    is_here = directory.resolve() == Path.cwd()
    test = "make test" if is_here else f"cd {shlex.quote(str(directory))} && make test"
    output.say(f"{directory} is a project of your own. Next: {test}")
    if arguments.wheels is None:
        output.say(
            "If no package index of yours has scheduler-agent-supervisor, write it again with "
            "--wheels DIR."
        )
    return 0


VERBS = (
    Subcommand(
        name="new",
        summary="write a project of your own",
        description=NEW,
        add_arguments=_add_new,
        run=_new,
        connects=False,
    ),
)
