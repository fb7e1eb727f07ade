"""Runs the broker for tests and benchmarks without an event loop: on a thread or as a process."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from devstack.servicebus.broker import Broker, Queues

T = TypeVar("T")
_ANSWERS_WITHIN_S = _STOPS_WITHIN_S = 120.0


class BrokerThread:
    """A `Broker` on a thread with its own event loop, for synchronous tests.

    The arguments are those of `Broker`. Use the broker itself only through `call`.

        with BrokerThread(["orders"]) as broker:
            client = ServiceBusClient.from_connection_string(broker.connection_string)
            broker.call(lambda b: b.counts("orders").active)
    """

    def __init__(self, queues: Queues = None, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._broker = Broker(queues, **options)
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self.port = self.management_port = 0
        self.connection_string = ""

    def start(self) -> Self:
        """Start. Raises the errors of `Broker.start`."""
        self._thread.start()
        try:
            self._run(self._broker.start())
        except BaseException:
            self._end_loop()
            raise
        self.port = self._broker.port
        self.management_port = self._broker.management_port or 0
        self.connection_string = self._broker.connection_string
        return self

    def stop(self) -> None:
        """Stop the broker and its thread."""
        if self._thread.is_alive():
            self._run(self._broker.stop())
            self._end_loop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOPS_WITHIN_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_ANSWERS_WITHIN_S)

    def call(self, work: Callable[[Broker], T]) -> T:
        """Run ``work`` with the broker on its loop; return the result."""

        async def run() -> T:
            return work(self._broker)

        return self._run(run())


class BrokerProcess:
    """A broker in a process of its own, made by `start_broker`; `with` stops it."""

    def __init__(self, process: "subprocess.Popen[str]", ready: dict[str, Any]) -> None:
        self.process = process
        self.connection_string: str = ready.get("connection_string", "")
        self.port: int = ready.get("port", 0)
        self.management_port: int = ready.get("management_port", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """End the process with SIGTERM; return its exit code."""
        self.process.terminate()
        return self._wait()

    def kill(self) -> int:
        """End the process at once with SIGKILL, like a crash."""
        self.process.kill()
        return self._wait()

    def _wait(self) -> int:
        try:
            return self.process.wait(_STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(_STOPS_WITHIN_S)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()


def start_broker(config: Path, *, port: int = 0, data: Path | None = None) -> BrokerProcess:
    """Start ``python -m devstack.servicebus`` and wait for its ready line.

    Raises RuntimeError if it does not start; its reason is on stderr.
    """
    command = [sys.executable, "-m", "devstack.servicebus", "--config", str(config)]
    command += ["--port", str(port), "--management-port", "0"]
    if data is not None:
        command += ["--data", str(data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=None, text=True)
    line = process.stdout.readline() if process.stdout else ""
    broker = BrokerProcess(process, json.loads(line) if line else {})
    if not line:
        code = broker.kill()
        raise RuntimeError(f"the broker did not start (exit code {code}); the reason is on stderr")
    return broker
