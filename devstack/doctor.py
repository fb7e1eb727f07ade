"""`devstack doctor`: what this machine lacks, and how to fix it."""

import importlib.util
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from devstack.azurite import require_node
from devstack.inputs import DevstackError
from devstack.listeners import Listener, listeners

PORTS = {5672: "Service Bus", 5300: "its management API", 10002: "Azurite", 7071: "HTTP triggers"}
_NODE_MIN = 20
_PACKAGES = ("azure.functions", "azure.servicebus", "aiohttp")


def run_doctor(app_dir: Path) -> int:
    """Print the problems; return 0 when there are none, else 1."""
    checks: list[Callable[[], Iterable[str]]] = [
        check_packages,
        check_node,
        busy_ports,
        lambda: [] if check_packages() else check_app(app_dir.resolve()),
    ]
    problems = [problem for check in checks for problem in check()]
    for problem in problems:
        sys.stdout.write(f"- {problem}\n")
    if not problems:
        sys.stdout.write(
            "Nothing is missing: `python -m devstack up` will start.\n"
            if (app_dir / "function_app.py").exists()
            else f"Nothing is missing on this machine, but {app_dir} contains no function app.\n"
        )
    return 1 if problems else 0


def check_packages() -> list[str]:
    """Check that the SDKs can be imported."""
    missing = [name for name in _PACKAGES if not _importable(name)]
    said = f"Python lacks {', '.join(missing)}: run `make setup` and use .venv/bin/python."
    return [said] if missing else []


def _importable(name: str) -> bool:
    with suppress(ModuleNotFoundError):  # its parent package is missing
        return importlib.util.find_spec(name) is not None
    return False


def check_node() -> list[str]:
    """Check that Azurite and a Node that can run it are installed."""
    try:
        node = require_node()
    except DevstackError as error:
        return [str(error)]
    try:
        ran = subprocess.run(  # noqa: S603  # the node that PATH names
            [node, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return check_node_version("")
    return check_node_version(ran.stdout)


def check_node_version(output: str) -> list[str]:
    """Check the output of `node --version`."""
    major = re.match(r"v(\d+)", output)
    said = f"Node is {output.strip() or 'broken'}: install Node {_NODE_MIN} or newer."
    return [said] if major is None or int(major.group(1)) < _NODE_MIN else []


def busy_ports(ports: Iterable[int] = tuple(PORTS)) -> list[str]:
    """Check that the ports of `--ports fixed` are free; one sentence for each process."""
    busy = [port for port in ports if _busy(port)]
    known = listeners(busy)
    held: dict[Listener | None, list[str]] = {}
    for port in busy:
        held.setdefault(known.get(port), []).append(f"{port} ({PORTS.get(port, 'wanted')})")
    return [_held(holder, names) for holder, names in held.items()]


def _held(holder: Listener | None, names: list[str]) -> str:
    what = f"Port {names[0]} is" if len(names) == 1 else f"Ports {', '.join(names)} are"
    if holder is None:
        return f"{what} busy, by a process of another user: end that one, or say --ports free."
    stop = f"stop it (`kill {holder.pid}`), or say --ports free"
    return f"{what} held by {holder}: {stop}."


def _busy(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return False
    return True


def check_app(app_dir: Path) -> list[str]:
    """Check the app's files as far as possible without importing the app."""
    if not app_dir.is_dir():
        return [f"{app_dir} is not a directory: name the one that holds function_app.py."]
    if not (app_dir / "function_app.py").exists():
        return []
    from devstack.functions.hostjson import load_host_json  # noqa: PLC0415  # needs the SDKs
    from devstack.functions.settings import Settings  # noqa: PLC0415

    try:
        load_host_json(app_dir, Settings.load(app_dir))
    except DevstackError as error:
        return [str(error)]
    return []
