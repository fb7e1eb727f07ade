"""Checks what this machine lacks for a stack: `devstack doctor` and `up` use these checks."""

import importlib.util
import re
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from devstack.azurite import require_node
from devstack.functions.hostjson import load_host_json
from devstack.functions.settings import Settings
from devstack.inputs import DevstackError, NotInstalledError
from devstack.listeners import Listener, listeners, output_of

PORTS = {5672: "Service Bus", 5300: "its management API", 10002: "Azurite", 7071: "HTTP triggers"}
_NODE_MIN = 20
_PACKAGES = ("azure.functions", "azure.servicebus", "aiohttp")


def check_packages() -> list[str]:
    """Check that the SDKs can be imported."""
    missing = [name for name in _PACKAGES if not _importable(name)]
    wanted = [name.replace(".", "-") for name in missing]
    said = (
        f"Python lacks {', '.join(missing)}: use the Python that has the app's packages, or run "
        f"`{sys.executable} -m pip install {' '.join(wanted)}`."
    )
    return [said] if missing else []


def _importable(name: str) -> bool:
    with suppress(ModuleNotFoundError):  # its parent package is missing
        return importlib.util.find_spec(name) is not None
    return False


def check_node(app_dir: Path | None = None) -> list[str]:
    """Check Node, and npm where `up` has to install Azurite with it."""
    try:
        require_node(app_dir)
    except NotInstalledError as error:
        if not (shutil.which("node") and shutil.which("npm")):
            return [str(error)]
    return check_node_version(output_of("node", "--version"))


def has_azurite(app_dir: Path) -> bool:
    """Whether Azurite is installed where an app finds it."""
    with suppress(NotInstalledError):
        return bool(require_node(app_dir))
    return False


def check_node_version(output: str) -> list[str]:
    """Check the output of `node --version`."""
    major = re.match(r"v(\d+)", output)
    said = f"Node is {output.strip() or 'broken'}: install Node {_NODE_MIN} or newer."
    return [said] if major is None or int(major.group(1)) < _NODE_MIN else []


def busy_ports(ports: Mapping[int, str], free: str = "say --ports free") -> list[str]:
    """Check that these ports are free; one sentence for each process that holds some.

    `ports` says what each one is for, and `free` how to take others.
    """
    busy = [port for port in ports if _busy(port)]
    known = listeners(busy)
    held: dict[Listener | None, list[str]] = {}
    for port in busy:
        held.setdefault(known.get(port), []).append(f"{port} ({ports[port]})")
    return [_held(holder, names, free) for holder, names in held.items()]


def _held(holder: Listener | None, names: list[str], free: str) -> str:
    what = f"Port {names[0]} is" if len(names) == 1 else f"Ports {', '.join(names)} are"
    if holder is None:
        return f"{what} busy, by a process of another user: end that one, or {free}."
    stop = f"stop it (`kill {holder.pid}`), or {free}"
    return f"{what} held by {holder}: {stop}."


def _busy(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return False
    return True


def check_app(app_dir: Path, settings: dict[str, str], *, allow_remote: bool) -> None:
    """Check the app's files, without importing the app. Raises DevstackError for a wrong one."""
    if not (app_dir / "function_app.py").exists():
        raise DevstackError(
            f"{app_dir} has no function_app.py: name the directory of a function app."
        )
    load_host_json(app_dir, Settings.load(app_dir, overrides=settings, allow_remote=allow_remote))
