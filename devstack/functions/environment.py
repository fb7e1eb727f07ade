"""The app's settings in `os.environ`, for as long as the host runs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from devstack.functions.errors import HostError
from devstack.functions.settings import Settings

_running: list[object] = []


@contextmanager
def app_environment(settings: Settings) -> Iterator[None]:
    """Put every setting into the environment; put it back afterwards.

    Raises:
        HostError: another host runs in this process.
    """
    if _running:
        raise HostError(
            "A host already runs in this process, and the environment is its own: stop it first, "
            "or start the second one as a process (devstack.stack.Stack)."
        )
    before = dict(os.environ)
    _running.append(settings)
    os.environ.update(settings.values)
    os.environ.setdefault("FUNCTIONS_WORKER_RUNTIME", "python")
    os.environ.setdefault("AZURE_FUNCTIONS_ENVIRONMENT", "Development")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        _running.clear()
