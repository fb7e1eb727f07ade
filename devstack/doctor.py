"""`devstack doctor`: what this machine lacks, each with how to mend it."""

import importlib.util
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from devstack.azurite import require_node
from devstack.errors import DevstackError

PORTS = {5672: "Service Bus", 5300: "its management API", 10002: "Azurite", 7071: "HTTP triggers"}
_PYTHON = (3, 11)
_NODE = 20
_PACKAGES = ("azure.functions", "azure.servicebus", "aiohttp")


def run_doctor(app_dir: Path) -> int:
    """Print what was found; 0 when nothing is wrong, 1 otherwise."""
    checks: list[Callable[[], Iterable[str]]] = [
        check_python,
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
            else f"Nothing is missing on this machine; {app_dir} holds no function app to start.\n"
        )
    return 1 if problems else 0


def check_python(version: tuple[int, int] | None = None) -> list[str]:
    """This interpreter must be new enough."""
    major, minor = version or sys.version_info[:2]
    if (major, minor) >= _PYTHON:
        return []
    return [f"This is Python {major}.{minor}: use 3.11 or newer; `make setup` finds one."]


def check_packages() -> list[str]:
    """The SDKs must be importable."""
    missing = [name for name in _PACKAGES if not _importable(name)]
    if not missing:
        return []
    return [f"Python lacks {', '.join(missing)}: run `make setup` and use .venv/bin/python."]


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def check_node() -> list[str]:
    """Azurite needs Node, and its npm package."""
    try:
        node = require_node()
    except DevstackError as error:
        return [str(error)]
    return check_node_version(_version_of(node))


def check_node_version(said: str) -> list[str]:
    """`said` is what `node --version` printed."""
    major = re.match(r"v(\d+)", said)
    if major is None or int(major.group(1)) < _NODE:
        return [f"Node is {said.strip() or 'broken'}: install Node {_NODE} or newer."]
    return []


def _version_of(node: str) -> str:
    try:
        ran = subprocess.run(  # noqa: S603  # the node that PATH names
            [node, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout


def busy_ports(ports: Iterable[int] = tuple(PORTS)) -> list[str]:
    """Ports that `--ports fixed` wants and something else has."""
    return [
        f"Port {port} ({PORTS.get(port, 'wanted')}) is busy: stop what listens there"
        f"{_finder(port)}, or say --ports free."
        for port in ports
        if _busy(port)
    ]


def _finder(port: int) -> str:
    return f" (`lsof -i :{port}` names it)" if shutil.which("lsof") else ""


def _busy(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def check_app(app_dir: Path) -> list[str]:
    """The app's files, as far as they can be judged without importing it."""
    if not app_dir.is_dir():
        return [f"{app_dir} is no directory: name the one that holds function_app.py."]
    if not (app_dir / "function_app.py").exists():
        return []  # no app here: the doctor was asked about the machine only
    from devstack.functions.hostjson import load_host_json  # noqa: PLC0415  # needs the SDKs
    from devstack.functions.settings import Settings  # noqa: PLC0415

    try:
        load_host_json(app_dir, Settings.load(app_dir))
    except DevstackError as error:
        return [str(error)]
    return []
