"""``python -m devstack.servicebus``: the broker as a command.

It prints one line of JSON on stdout once it is ready, logs to stderr, and ends with 0 on SIGTERM or
SIGINT. A wrong argument, configuration or data directory gives exit code 2, a failing disk 1. The
reason is on stderr.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from devstack.inputs import whole_number
from devstack.lifecycle import stop_event
from devstack.servicebus.broker import Broker
from devstack.servicebus.config import ConfigError, read_config
from devstack.servicebus.storage import StorageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        config = read_config(options.config)
        for entity in config.not_served:
            logging.getLogger("devstack.servicebus").warning(
                "%s is not served: this broker serves queues only", entity
            )
        broker = Broker(
            config,
            port=options.port,
            management_port=options.management_port,
            data=options.data,
        )
        return asyncio.run(_serve(broker))
    except (ConfigError, StorageError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 (a command's message)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="devstack-servicebus",
        description="A Service Bus broker for one machine: queues over AMQP 1.0 on 127.0.0.1.",
    )
    add = parser.add_argument
    add("--config", type=Path, required=True, help="the emulator's Config.json: which queues")
    add("--port", type=_port, default=5672, help="AMQP port, 0 for a free one")
    add("--management-port", type=_port, default=5300, help="HTTP port, 0 for a free one")
    add("--data", type=Path, help="store everything in this directory")
    add("-v", "--verbose", action="store_true", help="log more")
    return parser


def _port(text: str) -> int:
    port = whole_number(text)
    if port is None or port > 65535:
        raise argparse.ArgumentTypeError(
            f"{text[:50]!r} is not a port: give a number from 0 to 65535"
        )
    return port


async def _serve(broker: Broker) -> int:
    try:
        await broker.start()
    except OSError as error:
        print(  # noqa: T201 (a command's message)
            f"error: {error.strerror}; stop what uses the port, or give another --port or "
            "--management-port (0 picks a free one)",
            file=sys.stderr,
        )
        return 2
    stop = stop_event()
    disk_failure = asyncio.create_task(broker.wait_failed())
    disk_failure.add_done_callback(lambda _: stop.set())
    ready = {
        "ready": True,
        "pid": os.getpid(),
        "port": broker.port,
        "management_port": broker.management_port,
        "connection_string": broker.connection_string,
    }
    print(json.dumps(ready), flush=True)  # noqa: T201 (the ready line)
    await stop.wait()
    disk_failure.cancel()
    await broker.stop()
    if broker.failure is not None:
        print(f"error: {broker.failure}", file=sys.stderr)  # noqa: T201 (a command's message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
