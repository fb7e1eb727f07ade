"""``make up``: Azure on this machine, the remote services and the operator's desk, in one command.

This process becomes `devstack up` with the right arguments, so one Ctrl-C ends everything. With
--data the queues, the table and the ledgers of the services are there again after the next start.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from devstack.children import free_port
from devstack.doctor import PORTS, busy_ports
from samples.services.contract import SERVICES
from sas.cli.desk import PORT as DESK_PORT

PORT_BASE = 7101
FREE = "run `make up UP='--ports free'`"
PROJECT = Path(__file__).parents[1]


def command(arguments: Sequence[str] | None = None) -> list[str]:
    """Return the command line of `devstack up`. It passes on options that are not known here."""
    parser = argparse.ArgumentParser(
        prog="python -m samples.up", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--ports", choices=["fixed", "free"], default="fixed", help="the usual ports, or free ones")
    add("--data", type=Path, metavar="DIR", help="keep everything here, for the next start")
    add("--services", default="", metavar="OPTIONS", help="for samples.remote_services, quoted")
    options, others = parser.parse_known_args(arguments)
    base = PORT_BASE if options.ports == "fixed" else _free_port_base()
    urls = {name: f"http://127.0.0.1:{base + index}" for index, name in enumerate(SERVICES)}
    services = ["-m", "samples.remote_services", "--port-base", str(base)]
    desk = ["-m", "sas.cli", "desk"]
    up = [sys.executable, "-m", "devstack", "up", str(PROJECT), "--ports", options.ports]
    if options.data is not None:
        up += ["--data", str(options.data.resolve())]
    for index, name in enumerate(SERVICES):  # they listen before an order can call them
        up += ["--needs", f"{base + index}=service {name}"]
    for name, url in urls.items() if base != PORT_BASE else ():
        up += ["--setting", f"ORDERS_{name.upper()}_URL={url}"]
    if options.ports == "free":
        desk += ["--port", str(free_port())]
    services += shlex.split(options.services)
    up += [word for part in (services, desk) for word in ("--with", _line(part))]
    return up + others


def busy(words: Sequence[str]) -> list[str]:
    """Return a sentence for each process that holds a port which this command line needs."""
    if words[words.index("--ports") + 1] == "free":
        return []
    services = {PORT_BASE + index: f"service {name}" for index, name in enumerate(SERVICES)}
    return busy_ports(PORTS | services | {DESK_PORT: "the desk"}, FREE)


def _line(words: Sequence[str]) -> str:
    return shlex.join([sys.executable, *words])


def _free_port_base() -> int:
    """Return the first port of a row of free ports, one for each service."""
    while True:
        base = free_port()
        with ExitStack() as probes, suppress(OSError, OverflowError):
            for port in range(base, base + len(SERVICES)):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base


if __name__ == "__main__":
    words = command()
    if sentences := busy(words):
        sys.exit("\n".join(sentences))
    os.execv(words[0], words)  # noqa: S606  # our own command, no shell
