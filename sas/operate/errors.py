"""The errors that end what an operator asked for: each is one sentence that says what to do."""

from __future__ import annotations

USAGE = 2
UNAVAILABLE = 3


class CommandError(Exception):
    """A command ends: its text is one sentence, its class has the exit code."""

    exit_code = 1


class NotPossibleError(CommandError):
    """What was asked for is not there, or not in a state for it. Nothing was changed."""


class UsageError(CommandError):
    """The caller must change something: an argument, a setting, a line of the input."""

    exit_code = USAGE


class UnavailableError(CommandError):
    """Service Bus or Storage did not answer, or refused. The same command may work later."""

    exit_code = UNAVAILABLE
