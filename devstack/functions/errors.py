"""What the host refuses, each with one sentence that says what to do."""

from devstack.errors import DevstackError


class HostError(DevstackError):
    """The host cannot run this app as it stands."""


class SettingsError(HostError):
    """local.settings.json or the environment lacks something, or holds nonsense."""


class HostJsonError(HostError):
    """host.json says something that the Functions host would refuse or ignore."""


class IndexingError(HostError):
    """function_app.py cannot be indexed: what Azure would say at deployment, said here."""


class InvocationError(HostError):
    """A function did something its bindings do not allow; the invocation failed."""
