"""Check whether this machine has what a stack needs, for `devstack doctor` and `devstack up`.

A check returns one sentence for each problem, or raises a DevstackError with the sentence.
"""

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
from devstack.listeners import ListeningProcess, listeners, output_of

PORTS = {5672: "Service Bus", 5300: "its management API", 10002: "Azurite", 7071: "HTTP triggers"}
_NODE_MIN = 20
_PACKAGES = ("azure.functions", "azure.servicebus", "aiohttp")


def check_packages() -> list[str]:
    """Check that the SDKs can be imported."""
    missing = [name for name in _PACKAGES if not _importable(name)]
    if not missing:
        return []
    packages = [name.replace(".", "-") for name in missing]
    problem = (
        f"Python lacks {', '.join(missing)}: use the Python that has the app's packages, or run "
        f"`{sys.executable} -m pip install {' '.join(packages)}`."
    )
    return [problem]


def _importable(name: str) -> bool:
    with suppress(ModuleNotFoundError):  # its parent package is missing
        return importlib.util.find_spec(name) is not None
    return False


def check_node() -> list[str]:
    """Check Node, and also npm if `up` has to use it to install Azurite."""
    try:
        require_node()
    except NotInstalledError as error:
        if not (shutil.which("node") and shutil.which("npm")):
            return [str(error)]
    return check_node_version(output_of("node", "--version"))


def has_azurite() -> bool:
    """Whether Azurite is installed."""
    with suppress(NotInstalledError):
        return bool(require_node())
    return False


def check_node_version(output: str) -> list[str]:
    """Check the output of `node --version`."""
    major = re.match(r"v(\d+)", output)
    if major is not None and int(major.group(1)) >= _NODE_MIN:
        return []
    return [f"Node is {output.strip() or 'broken'}: install Node {_NODE_MIN} or newer."]


def busy_ports(ports: Mapping[int, str], advice: str = "say --ports free") -> list[str]:
    """Check that these ports are free; return one sentence for each process that holds any.

    `ports` tells what each port is for, and `advice` how the user can take other ports.
    """
    busy = [port for port in ports if _busy(port)]
    holders = listeners(busy)
    names_by_holder: dict[ListeningProcess | None, list[str]] = {}
    for port in busy:
        names = names_by_holder.setdefault(holders.get(port), [])
        names.append(f"{port} ({ports[port]})")
    return [_port_problem(holder, names, advice) for holder, names in names_by_holder.items()]


def _port_problem(holder: ListeningProcess | None, names: list[str], advice: str) -> str:
    subject = f"Port {names[0]} is" if len(names) == 1 else f"Ports {', '.join(names)} are"
    if holder is None:
        return f"{subject} busy, by a process of another user: end that one, or {advice}."
    stop = f"stop it (`kill {holder.pid}`), or {advice}"
    return f"{subject} held by {holder}: {stop}."


def _busy(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return False
    return True


def check_app(app_dir: Path, settings: dict[str, str], *, allow_remote: bool) -> None:
    """Check the app's files without importing the app; raise DevstackError for a wrong file."""
    if not (app_dir / "function_app.py").exists():
        raise DevstackError(
            f"{app_dir} has no function_app.py: name the directory of a function app."
        )
    load_host_json(app_dir, Settings.load(app_dir, overrides=settings, allow_remote=allow_remote))
