"""What every test with the real azure-servicebus shares.

The SDK polls. It sleeps 0.05 to 0.1 s each time before it checks whether a link has opened. The
thread that keeps a sync client alive sleeps for a second at a time, and each close waits for that
thread. The fixture `short_pauses` shortens those pauses and nothing else. `collect_leftovers`
collects what clients leave open when their connections were cut, so that the warning does not hit a
test of another module. To collect takes half a second in a large process. A module asks for both
with ``pytestmark = SDK``, and one that cuts no connection for the short pauses alone.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PAUSE_S = 0.005
POLLING = {
    "azure.servicebus._servicebus_receiver": "time",
    "azure.servicebus._servicebus_sender": "time",
    "azure.servicebus._pyamqp.client": "time",
    "azure.servicebus.aio._servicebus_receiver_async": "asyncio",
    "azure.servicebus.aio._servicebus_sender_async": "asyncio",
    "azure.servicebus._pyamqp.aio._client_async": "asyncio",
}
CONNECTIONS = (
    "azure.servicebus._pyamqp._connection",
    "azure.servicebus._pyamqp.aio._connection_async",
)
LEFTOVERS = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:loop is closed:ResourceWarning"),
]
SHORT_PAUSES = pytest.mark.usefixtures("short_pauses")
SDK = [*LEFTOVERS, pytest.mark.usefixtures("short_pauses", "collect_leftovers")]


class Hurried:
    """``time`` or ``asyncio`` as the SDK's modules see it, with short sleeps."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def sleep(self, seconds: float) -> Any:
        return self._module.sleep(min(seconds, PAUSE_S))


@contextmanager
def hurried() -> Iterator[None]:
    """Shorten the pauses of the SDK meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CONNECTIONS:
            connection = importlib.import_module(name).Connection
            patch.setitem(connection.__init__.__kwdefaults__, "idle_wait_time", PAUSE_S)
        for name, sleeper in POLLING.items():
            module = importlib.import_module(name)
            patch.setattr(module, sleeper, Hurried(getattr(module, sleeper)))
        yield
