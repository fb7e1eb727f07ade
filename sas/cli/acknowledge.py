"""``sas acknowledge``: note that an order in Error has been seen."""

from __future__ import annotations

import argparse

from sas.cli import command
from sas.domain.messages import Verb

SUMMARY = "note that an order in Error has been seen"
DESCRIPTION = """\
Note in the journal that somebody has seen that an order is in Error, so that others need not look.
Nothing else changes; sas list shows who it was. It needs no confirmation.

  sas acknowledge 10248 --by ann
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    command.add_arguments(parser, Verb.ACKNOWLEDGE)


def run(arguments: argparse.Namespace) -> int:
    """Do it; return the exit code."""
    return command.run(arguments, Verb.ACKNOWLEDGE)
