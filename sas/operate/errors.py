"""The errors that end an operator's command. The text of each says what to do."""

from __future__ import annotations

USAGE = 2
UNAVAILABLE = 3


class CommandError(Exception):
    """A command ends with an error. Its text is one sentence; its class gives the exit code."""

    exit_code = 1


class NotPossibleError(CommandError):
    """The order or message is not there, or its state does not allow this. Nothing was changed."""


class UsageError(CommandError):
    """The caller must change something: an argument, a setting, a line of the input."""

    exit_code = USAGE


class ServiceUnavailableError(CommandError):
    """Service Bus or Storage did not answer, or refused. The same command may work later."""

    exit_code = UNAVAILABLE
