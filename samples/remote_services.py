"""Run stock, payment, shipping, mail and carrier: ``python -m samples.remote_services``.

When all of them listen, it prints one JSON line with their addresses and the pid. It serves until
SIGTERM or SIGINT, and with --exit-with-parent until standard input ends. samples/README.md
describes the answers. In tests: ``async with RemoteServices() as remote``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from devstack.inputs import DevstackError
from devstack.listeners import listeners
from samples.services.contract import SERVICES
from samples.services.faults import Faults, FaultsError
from samples.services.ledger import RECORDS_MAX_DEFAULT
from samples.services.remote import RemoteServices

__all__ = ["Faults", "FaultsError", "RemoteServices", "main"]

PORT_BASE_MAX = 65_531  # five ports in a row, the last is 65535


def _parser() -> argparse.ArgumentParser:
    defaults = Faults()
    parser = argparse.ArgumentParser(
        prog="python -m samples.remote_services", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add(
        "--seed",
        type=int,
        default=defaults.seed,
        help="decides which calls fail (default %(default)s)",
    )
    add("--transient", type=float, default=0.1, help="share of calls that fail temporarily")
    add("--permanent", type=float, default=0.02, help="share of keys that are always refused")
    add("--slow", type=float, default=0.01, help="share of calls that are slow")
    add(
        "--slow-seconds",
        type=float,
        default=defaults.slow_seconds,
        help="seconds that a slow call takes",
    )
    add("--latency", type=float, default=defaults.latency, help="seconds that every call takes")
    add("--delivery", type=float, default=defaults.delivery, help="seconds that a delivery takes")
    add("--undo-permanent", type=float, default=0.0, help="share of undos that are always refused")
    add(
        "--retry-after",
        type=int,
        default=defaults.retry_after_seconds,
        help="Retry-After of a 429, in seconds",
    )
    add("--max-transient-attempts", type=int, help="later attempts of a key do not fail")
    add("--ledger-max", type=int, default=RECORDS_MAX_DEFAULT, help="keys that a ledger holds")
    data = Path(os.environ["DEVSTACK_DATA"], "services") if "DEVSTACK_DATA" in os.environ else None
    add("--data", type=Path, default=data, metavar="DIR", help="keep the ledgers here")
    add("--port-base", type=int, help="first of five ports (default: free ports)")
    add("--exit-with-parent", action="store_true", help="end when standard input ends")
    return parser


def _services(options: argparse.Namespace) -> RemoteServices:
    faults = Faults(
        seed=options.seed,
        transient=options.transient,
        permanent=options.permanent,
        slow=options.slow,
        slow_seconds=options.slow_seconds,
        undo_permanent=options.undo_permanent,
        latency=options.latency,
        delivery=options.delivery,
        retry_after_seconds=options.retry_after,
        max_transient_attempts=options.max_transient_attempts,
    )
    return RemoteServices(
        faults, port_base=options.port_base, ledger_max=options.ledger_max, data=options.data
    )


def _watch_stdin(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """Set ``stopped`` when standard input ends, as it does when the parent dies."""

    def watch() -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:
            pass  # unreadable standard input counts as ended
        # The loop may be closed already.
        if not loop.is_closed():
            loop.call_soon_threadsafe(stopped.set)

    threading.Thread(target=watch, name="stdin", daemon=True).start()


async def _serve(remote: RemoteServices, *, exit_with_parent: bool) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopped.set)
    async with remote:
        if exit_with_parent:
            _watch_stdin(loop, stopped)
        print(json.dumps({**remote.urls, "pid": os.getpid()}), flush=True)
        await stopped.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; return 0, or 2 when the options or ports are wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.port_base is not None and not 1 <= options.port_base <= PORT_BASE_MAX:
        parser.error(f"--port-base {options.port_base}: give one from 1 to {PORT_BASE_MAX}")
    if options.ledger_max < 1:
        parser.error(f"--ledger-max {options.ledger_max}: give at least 1")
    try:
        asyncio.run(_serve(_services(options), exit_with_parent=options.exit_with_parent))
    except FaultsError as error:
        parser.error(str(error))
    except DevstackError as error:
        parser.error(str(error))
    except OSError as error:
        base = options.port_base or 0
        holders = listeners(range(base, base + len(SERVICES)))
        reason = "; ".join(f"port {port} is held by {holder}" for port, holder in holders.items())
        print(
            f"the services cannot listen: {reason or error.strerror or error}; stop the process "
            "that listens there, or give another --port-base",
            file=sys.stderr,
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
