"""What every test with the real azure-servicebus shares.

The SDK polls: it sleeps 0.1 s between looks at a link that opens, and a second at a time in the
thread that keeps a sync client alive, which every close waits for. The fixtures shorten those
pauses, and collect what a client leaves open when its connection was cut (its sockets), so that
the warning does not fall on whichever test runs next.
"""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.servicebus._common import _configuration
from azure.servicebus._pyamqp._connection import Connection
from azure.servicebus._pyamqp.aio._connection_async import Connection as AsyncConnection

PAUSE_S = 0.005
LEFTOVERS = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:loop is closed:ResourceWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def short_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for connection in (Connection, AsyncConnection):
            defaults: dict[str, Any] = connection.__init__.__kwdefaults__ or {}
            patch.setitem(defaults, "idle_wait_time", PAUSE_S)
        original: Callable[..., None] = _configuration.Configuration.__init__

        def without_keeping_alive(self: _configuration.Configuration, **options: object) -> None:
            original(self, **{"keep_alive": 0, **options})

        patch.setattr(_configuration.Configuration, "__init__", without_keeping_alive)
        yield


@pytest.fixture(autouse=True)
def collect_leftovers() -> Iterator[None]:
    yield
    gc.collect()
