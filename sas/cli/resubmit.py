"""``sas resubmit``: run again what failed of an order."""

from __future__ import annotations

import argparse

from sas.cli import command
from sas.domain.messages import Verb

SUMMARY = "run again what failed of an order"
DESCRIPTION = """\
Run the failed steps of an order in Error again, or its failed undos. Failures are counted anew; the
remote service meets the same idempotency key, so that what it did already is not done twice.

  sas resubmit 10248
  sas resubmit 10248 --step charge-card --input '{"amount": 12.5}'
  sas resubmit --state error --fingerprint charge-card/timed-out
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    command.add_arguments(parser, Verb.RESUBMIT)


def run(arguments: argparse.Namespace) -> int:
    """Do it; return the exit code."""
    return command.run(arguments, Verb.RESUBMIT)
