"""``sas new`` in an empty environment: nothing but the built wheels and what they depend on.

The Python that runs the tests has a project, whose stack runs too, and so has the one that is
farthest from it: the oldest that is supported, or the newest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from devstack import azurite
from tests.ports import free_port
from tools.dist import ROOT, build

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
PIN = re.compile(r"^([\w.-]+==[^\s\\]+(?: ; [^\\]+?)?) *\\?$", re.MULTILINE)
FROM_OUTSIDE = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")


RUNNING = "{}.{}".format(*sys.version_info)
OLDEST, NEWEST = "3.11", "3.13"
OTHER = NEWEST if RUNNING == OLDEST else OLDEST


def python_of(version: str) -> str | None:
    """Return a Python of this version that can make environments, or None."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(map(str, roots.glob(f"versions/{version}*/bin/python")))
    probe = f"import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for candidate in (shutil.which(f"python{version}"), *installed):
        if candidate and not subprocess.run([candidate, "-c", probe], check=False,
                                            capture_output=True).returncode:  # fmt: skip
            return candidate
    return None


@dataclass(frozen=True)
class Place:
    """A directory with the built packages in ``dist`` and the pinned versions of all others, and
    the Python that a newcomer has.
    """

    folder: Path
    python: str


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built packages."""
    folder = tmp_path_factory.mktemp("packages") / "dist"
    build(folder)
    return folder


@pytest.fixture(scope="module")
def place(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return place_for(sys.executable, packages, tmp_path_factory.mktemp("new"))


def place_for(python: str, packages: Path, folder: Path) -> Place:
    (folder / "dist").symlink_to(packages)
    pinned = PIN.findall((ROOT / "requirements-dev.txt").read_text(encoding="utf-8"))
    assert len(pinned) > 50
    (folder / "pins.txt").write_text("\n".join(pinned))
    cached = folder / "cache" / "devstack" / azurite._cache().name
    cached.mkdir(parents=True)
    (cached / "node_modules").symlink_to(azurite._PACKAGE / "node_modules")
    return Place(folder, python)


def run(place: Place, *words: str | Path, cwd: Path | None = None) -> str:
    """Run a command as a newcomer does, and return what it says; it must succeed."""
    ran = subprocess.run(
        [str(word) for word in words],
        cwd=cwd or place.folder, env=environment(place),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"{words}: {ran.stdout[-3000:]}{ran.stderr[-3000:]}"
    return ran.stdout


def environment(place: Place, **settings: str) -> dict[str, str]:
    """This machine's environment without this repository; Azurite is installed for this user."""
    env = {name: value for name, value in os.environ.items() if name not in FROM_OUTSIDE}
    caches = Path(env.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    pip = {
        "PIP_CONSTRAINT": str(place.folder / "pins.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_CACHE_DIR": env.get("PIP_CACHE_DIR", str(caches / "pip")),
    }
    cache = {"XDG_CACHE_HOME": str(place.folder / "cache")}
    return {**env, **pip, **cache, "PYTHON": place.python, **settings}


@pytest.fixture(scope="module")
def project(place: Place) -> Path:
    return project_of(place)


def project_of(place: Place) -> Path:
    """What ``sas new`` writes, where only the package and its command are installed; its tests
    pass, on that Python, with nothing of this repository on its path.
    """
    run(place, place.python, "-m", "venv", "empty")
    pip = place.folder / "empty" / "bin" / "pip"
    run(place, pip, "install", "-q", "--find-links", "dist", "scheduler-agent-supervisor[cli]")
    sas = place.folder / "empty" / "bin" / "sas"
    assert "is a project of your own" in run(place, sas, "new", "tea-shop", "--wheels", "dist")
    project = place.folder / "tea-shop"
    tested = run(place, "make", "test", cwd=project)
    assert re.search(r"\d+ passed", tested)
    code = "import sas, devstack, sys; print(sas.__file__, devstack.__file__, sys.version)"
    paths = run(place, project / ".venv" / "bin" / "python", "-c", code, cwd=project)
    assert str(ROOT) not in paths
    assert paths.endswith(run(place, place.python, "-c", "import sys; print(sys.version)"))
    assert paths.count("site-packages") == 2
    return project


def test_a_new_project_is_made_and_tested_on_the_python_that_is_farthest_away(
    packages: Path, tmp_path: Path
) -> None:
    python = python_of(OTHER)
    if python is None:
        pytest.skip(f"no Python {OTHER} on this machine")
    project_of(place_for(python, packages, tmp_path))


@contextmanager
def up(place: Place, project: Path) -> Iterator[str]:
    """``devstack up`` on free ports, with the project's services beside it; give their address."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    queues = ".devstack/Config.json"
    run(place, ".venv/bin/sas", "infra", "--emulator", queues, cwd=project)
    words = [".venv/bin/devstack", "up", ".", "--ports", "free", "--config", queues]
    words += ["--with", f".venv/bin/python services.py {port}"]
    words += ["--setting", f"STOCK_URL={address}", "--setting", f"PAYMENT_URL={address}"]
    running = subprocess.Popen(
        words, cwd=project, env=environment(place, PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert running.stdout is not None
        assert any("Ctrl-C stops everything" in line for line in running.stdout), "it ended"
        wait_for(address)
        yield address
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=120)


def wait_for(address: str) -> None:
    for _ in range(1000):
        try:
            urllib.request.urlopen(address, timeout=60).close()  # noqa: S310  our own server
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"{address} does not answer")


def test_its_orders_run_to_their_end_on_one_machine(place: Place, project: Path) -> None:
    sas = project / ".venv" / "bin" / "sas"
    with up(place, project) as services:
        env = environment(place)  # sas finds what runs here by itself
        words = ["submit", "orders.jsonl", "--json", "--patience", "120"]
        followed = subprocess.run(
            [sas, *words, "--reply-queue", "responses-web", "--follow"],
            cwd=project, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        shown = subprocess.run(
            [sas, "show", "A-1", "--json"],
            cwd=project, env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        with urllib.request.urlopen(services, timeout=60) as answer:  # noqa: S310
            effects = json.load(answer)
    events = [json.loads(line) for line in followed.stdout.splitlines() if "specversion" in line]
    ends = {event["subject"]: event["type"] for event in events}
    assert ends == {"A-1": "sas.order.completed.v1", "A-2": "sas.order.undone.v1"}, followed.stderr
    assert followed.returncode == 1  # one was undone
    record = json.loads(shown.stdout)
    assert record["ProcessState"] == "Processed"
    assert [step["Name"] for step in record["Steps"]] == ["reserve", "pay"]
    assert sorted(effects) == ["A-1/pay", "A-1/reserve"]
    page = run(place, ".venv/bin/sas", "docs", "docs/operating.md", cwd=project)
    assert page.startswith("# Operating")
    run(place, "make", "infra", cwd=project)
    run(place, ".venv/bin/sas", "infra", "--check", cwd=project)
