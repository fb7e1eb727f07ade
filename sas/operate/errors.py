"""The errors that end an operator's command. The text of each says what to do."""

from __future__ import annotations

USAGE = 2
UNAVAILABLE = 3


class CommandError(Exception):
    """A command ends with an error. The text is for the operator; the class gives the exit code."""

    exit_code = 1


class NotPossibleError(CommandError):
    """The order or the message does not exist, or its state does not allow the command.

    Nothing was changed.
    """


class UsageError(CommandError):
    """The caller must correct something: an argument, a setting, or a line of the input."""

    exit_code = USAGE


class ServiceUnavailableError(CommandError):
    """Service Bus or Storage did not answer, or refused the call.

    The same command may work later.
    """

    exit_code = UNAVAILABLE
