"""What this machine lacks for a stack, and how to fix it: `devstack doctor` and `up` ask here."""

import importlib.util
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from devstack.azurite import require_node
from devstack.inputs import DevstackError

PORTS = {5672: "Service Bus", 5300: "its management API", 10002: "Azurite", 7071: "HTTP triggers"}
_NODE_MIN = 20
_PACKAGES = ("azure.functions", "azure.servicebus", "aiohttp")


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
    """Check that the ports of `--ports fixed` are free."""
    find = " (`lsof -i :{}` names it)" if shutil.which("lsof") else ""
    return [
        f"Port {port} ({PORTS.get(port, 'wanted')}) is busy: stop the process that listens there"
        f"{find.format(port)}, or say --ports free."
        for port in ports
        if _busy(port)
    ]


def _busy(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return False
    return True


def check_queues(config: Path) -> list[str]:
    """Check a Config.json. Raises DevstackError for a wrong one."""
    if not check_packages():
        from devstack.servicebus import read_config  # noqa: PLC0415  # needs aiohttp

        read_config(config)
    return []


def check_app(app_dir: Path, settings: dict[str, str], *, allow_remote: bool) -> list[str]:
    """Check the app's files, without importing the app. Raises DevstackError for a wrong one."""
    if not (app_dir / "function_app.py").exists():
        return [f"{app_dir} has no function_app.py: name the directory of a function app."]
    if not check_packages():
        from devstack.functions.hostjson import load_host_json  # noqa: PLC0415  # needs the SDKs
        from devstack.functions.settings import Settings  # noqa: PLC0415

        load_host_json(
            app_dir, Settings.load(app_dir, overrides=settings, allow_remote=allow_remote)
        )
    return []
