"""Calls of the commands that deploy: ``az``, ``azd`` and ``gh``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


class CommandFailedError(Exception):
    """A command is missing or has failed. ``text`` is what it said; the message names it too."""

    def __init__(self, command: tuple[str, ...], text: str) -> None:
        super().__init__(f"{' '.join(command)}\n{text}")
        self.command = command
        self.text = text


def run(*command: str, stdin: str | None = None) -> str:
    """Run a command and return what it prints, without white space at both ends.

    Raises:
        CommandFailedError: it is not on PATH, or ends with another code than 0.
    """
    process = subprocess.run(  # noqa: S603  # no shell
        [executable(*command), *command[1:]],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise CommandFailedError(command, process.stderr.strip())
    return process.stdout.strip()


def show(*command: str) -> None:
    """Run a command that takes minutes, and show what it prints, on stderr.

    Raises:
        CommandFailedError: as ``run``; its text is all that was printed.
    """
    process = subprocess.Popen(  # noqa: S603  # no shell
        [executable(*command), *command[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    with process:
        for line in process.stdout or ():
            lines.append(line)
            sys.stderr.write(line)
    if process.returncode:
        raise CommandFailedError(command, "".join(lines).strip())


def az(env: Mapping[str, str], *arguments: str) -> Any:
    """Run az in the subscription of ``env``; return the value that it prints, None for nothing.

    It asks for JSON each time, because people may have set another form of output.

    Raises:
        CommandFailedError: as ``run``.
    """
    subscription = env.get("AZURE_SUBSCRIPTION_ID")
    options = ("--subscription", subscription) if subscription else ()
    printed = run("az", *arguments, *options, "--output", "json")
    return json.loads(printed) if printed else None


def executable(*command: str) -> str:
    """Return the path of the program that a command begins with.

    Raises:
        CommandFailedError: it is not on PATH.
    """
    path = shutil.which(command[0])
    if path is None:
        text = f"{command[0]} was not found on PATH: install it and sign in"
        raise CommandFailedError(command, text)
    return path
