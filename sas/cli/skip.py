"""``sas skip``: go on as if a failed step were done."""

from __future__ import annotations

import argparse

from sas.cli import command
from sas.domain.messages import Verb

SUMMARY = "go on as if a failed step were done"
DESCRIPTION = """\
Take a failed step of an order in Error as done (or a failed undo as undone), by your word: when you
have done it by hand. --input is what later steps find as its result.

  sas skip 10248 --step ship-goods --input '{"parcel": "P-17"}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    command.add_arguments(parser, Verb.SKIP)


def run(arguments: argparse.Namespace) -> int:
    """Do it; return the exit code."""
    return command.run(arguments, Verb.SKIP)
