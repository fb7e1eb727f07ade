"""What every test with the real azure-servicebus shares.

The SDK polls: it sleeps 0.05 to 0.1 s between looks at a link that opens, and a second at a time
in the thread that keeps a sync client alive, which every close waits for. The fixtures shorten
those pauses and nothing else, and collect what a client leaves open when its connection was cut
(its sockets), so that the warning does not fall on whichever test runs next.
"""

import gc
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus._pyamqp._connection import Connection
from azure.servicebus._pyamqp.aio._connection_async import Connection as AsyncConnection

PAUSE_S = 0.005
POLLING = {
    "azure.servicebus._servicebus_receiver": "time",
    "azure.servicebus._servicebus_sender": "time",
    "azure.servicebus._pyamqp.client": "time",
    "azure.servicebus.aio._servicebus_receiver_async": "asyncio",
    "azure.servicebus.aio._servicebus_sender_async": "asyncio",
    "azure.servicebus._pyamqp.aio._client_async": "asyncio",
}
LEFTOVERS = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:loop is closed:ResourceWarning"),
]


class Hurried:
    """``time`` or ``asyncio`` as the SDK's modules see it, with short sleeps."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def sleep(self, seconds: float) -> Any:
        return self._module.sleep(min(seconds, PAUSE_S))


@pytest.fixture(autouse=True, scope="module")
def short_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for connection in (Connection, AsyncConnection):
            defaults: dict[str, Any] = connection.__init__.__kwdefaults__ or {}
            patch.setitem(defaults, "idle_wait_time", PAUSE_S)
        for name, sleeper in POLLING.items():
            module = importlib.import_module(name)
            patch.setattr(module, sleeper, Hurried(getattr(module, sleeper)))
        yield


@pytest.fixture(autouse=True, scope="module")
def collect_leftovers() -> Iterator[None]:
    """Once for a module: to collect takes half a second in a large process."""
    yield
    gc.collect()
