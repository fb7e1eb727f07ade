"""``sas cancel``: stop an order under way, and undo it."""

from __future__ import annotations

import argparse

from sas.cli import command
from sas.domain.messages import Verb

SUMMARY = "stop an order under way, and undo it"
DESCRIPTION = """\
Cancel an order under way: no new step starts, what is out is waited for (or expires), then all is
undone. There is no way back. Without --seq it is cancelled however far it has come meanwhile.

  sas cancel 10248
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    command.add_arguments(parser, Verb.CANCEL)


def run(arguments: argparse.Namespace) -> int:
    """Do it; return the exit code."""
    return command.run(arguments, Verb.CANCEL)
