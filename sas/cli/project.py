"""``sas new`` and ``sas upgrade``: a project of one's own, and what its template changed since."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from sas.cli import arguments as args
from sas.cli import output
from sas.cli.arguments import Verb
from sas.codec.record import to_line
from sas.operate.errors import UsageError
from sas.project.new import (
    MANIFEST,
    Change,
    ProjectError,
    Step,
    apply,
    changes,
    create,
    since,
    unmerged,
)

NEW = """\
Write a project of your own into a new directory: function_app.py, host.json, settings, infra and
azure.yaml for azd, a workflow of two steps with its agents, tests, a CI workflow, Makefile and
README. It runs on the installed packages; nothing of them is copied.

  sas new my-orders
  cd my-orders && make test && make up
"""
NO_WHEELS = """\
If no package index of yours has scheduler-agent-supervisor, put its two wheels into wheels/ first\
"""
NOT_MERGED = "not merged yet"
UPGRADE = f"""\
Show what the template changed between the version that wrote this project ({MANIFEST}) and
the installed one. Your own changes are not in the diff. Without --apply nothing is changed. With
it, files that you did not touch are written; for those that you changed, the template's version
is put beside yours as NAME.template: merge it into yours by hand, then remove it.

Exit code 0: nothing to do, or done. 1: there are changes.

  sas upgrade
  sas upgrade --apply
"""


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="a directory to make")
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="copy the wheels of these packages from here into the project, for machines whose "
        "package index does not have them",
    )
    args.add_json(parser, "one JSON object instead of text")


def _new(arguments: argparse.Namespace) -> int:
    directory: Path = arguments.directory
    try:
        create(directory, arguments.wheels)
    except ProjectError as wrong:
        raise UsageError(str(wrong)) from None
    if arguments.json:
        output.say(to_line({"Project": str(directory)}))
        return 0
    here = directory.resolve() == Path.cwd()
    test = "make test" if here else f"cd {shlex.quote(str(directory))} && make test"
    output.say(f"{directory} is a project of your own. Next: {test}")
    if arguments.wheels is None:
        output.say(f"{NO_WHEELS} (or run `sas new` with --wheels DIR).")
    return 0


def _add_upgrade(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", type=Path, nargs="?", default=Path(), metavar="DIR", help="default: here"
    )
    parser.add_argument("--apply", action="store_true", help="write the changes")
    args.add_json(parser, "one JSON object for each file that changes or is not merged yet")


def _upgrade(arguments: argparse.Namespace) -> int:
    project: Path = arguments.directory
    try:
        before, found = since(project), changes(project)
        if arguments.apply:
            apply(project, found)
    except ProjectError as wrong:
        raise UsageError(str(wrong)) from None
    if arguments.json:
        _tell_in_json(found, unmerged(project), applied=arguments.apply)
    else:
        _tell(found, unmerged(project), before, applied=arguments.apply)
    return 1 if found and not arguments.apply else 0


def _tell_in_json(found: list[Change], waiting: list[str], *, applied: bool) -> None:
    for change in found:
        said = {"Path": str(change.path), "Change": change.step.value, "Diff": change.diff()}
        output.say(to_line(said | {"Applied": applied}))
    for name in waiting:
        output.say(to_line({"Path": name, "Change": NOT_MERGED, "Diff": "", "Applied": False}))


def _tell(found: list[Change], waiting: list[str], before: str, *, applied: bool) -> None:
    for change in found:
        output.say(f"{change.path}: {change.step.value}")
        if not applied or change.step is Step.MERGE:
            output.say(change.diff())
    if not found:
        output.say(f"The template changed nothing since {before}.")
    elif not applied:
        merges = sum(change.step is Step.MERGE for change in found)
        output.say(
            f"{len(found)} files of the template changed since {before}. `sas upgrade --apply` "
            f"writes or removes {len(found) - merges} files; {merges} get NAME.template beside "
            "them, merge by hand."
        )
    for name in waiting:
        output.say(f"{name}: {NOT_MERGED}. Merge it into yours by hand, then remove it.")


VERBS = (
    Verb("new", "write a project of your own", NEW, _add_new, _new),
    Verb("upgrade", "show what the template changed since", UPGRADE, _add_upgrade, _upgrade),
)
