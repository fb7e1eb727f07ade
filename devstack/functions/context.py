"""What a function may ask for as `context`, and how its log lines know their invocation."""

import contextvars
import threading
from pathlib import Path

import azure.functions as func

INVOCATION: contextvars.ContextVar[tuple[str, str] | None] = contextvars.ContextVar(
    "devstack_invocation", default=None
)
"""(invocation id, function name) of the code that runs now; None outside of one."""

THREAD_LOCAL = threading.local()


class _Trace:
    """An empty trace context: nothing traces here."""

    trace_state = ""
    trace_parent = ""

    @property
    def attributes(self) -> dict[str, str]:
        return {}


class _Retry:
    """No retry policy runs here, so the counts are zero."""

    retry_count = 0
    max_retry_count = 0
    exception = None


class InvocationContext(func.Context):
    """`azure.functions.Context`, filled in."""

    def __init__(self, name: str, directory: Path, invocation_id: str) -> None:
        self._name = name
        self._directory = directory
        self._id = invocation_id

    @property
    def invocation_id(self) -> str:
        """A new id for every invocation, a redelivery included."""
        return self._id

    @property
    def function_name(self) -> str:
        """The function's name in Azure."""
        return self._name

    @property
    def function_directory(self) -> str:
        """The directory of the app."""
        return str(self._directory)

    @property
    def thread_local_storage(self) -> threading.local:  # type: ignore[override]
        """Set `thread_local_storage.invocation_id` in threads of your own."""
        return THREAD_LOCAL

    @property
    def trace_context(self) -> _Trace:  # type: ignore[override]
        """Empty here."""
        return _Trace()

    @property
    def retry_context(self) -> _Retry:  # type: ignore[override]
        """Zeros here."""
        return _Retry()
