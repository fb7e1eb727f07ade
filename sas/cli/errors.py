"""How a command ends that does not end well: the exit code and one sentence."""

USAGE = 2
TROUBLE = 3
INTERRUPTED = 130


class UsageError(Exception):
    """The caller must change something: an argument, a setting, a line of the input."""

    exit_code = USAGE


class OutputError(UsageError):
    """What was to be printed could not be: the disk is full, for instance."""


class NotThereError(Exception):
    """What was asked for is not there, or not in a state for it; nothing was changed."""

    exit_code = 1


class TroubleError(Exception):
    """Service Bus or Storage did not answer or refused; the same command may work later."""

    exit_code = TROUBLE
