"""``sas undo``: undo an order, for good."""

from __future__ import annotations

import argparse

from sas.cli import command
from sas.domain.messages import Verb

SUMMARY = "undo an order, for good"
DESCRIPTION = """\
Undo an order at once, whatever its state: every step that was ever begun, the last first. There is
no way back to doing it. To stop an order under way and let its calls come back first: sas cancel.

  sas undo 10248
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    command.add_arguments(parser, Verb.UNDO)


def run(arguments: argparse.Namespace) -> int:
    """Do it; return the exit code."""
    return command.run(arguments, Verb.UNDO)
