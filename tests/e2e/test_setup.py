"""What ``make setup`` says of a machine that lacks something, before it installs anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
READY = "devstack/azurite/node_modules/.ready"
NODE = shutil.which("node") or "node"
OLD = """#!/bin/sh
case "$1" in
    -v) echo v18.1.0 ;;
    -e) exec {node} -e "Object.defineProperty(process.versions, 'node', {{value: '18.1.0'}}); $2" ;;
esac
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The Makefile, with tools of the test's own on PATH: npm makes what it would install."""
    shutil.copy(PROJECT / "Makefile", tmp_path)
    lock = tmp_path / "devstack" / "azurite" / "package-lock.json"
    lock.parent.mkdir(parents=True)
    lock.write_text("{}")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "make", "touch", "mkdir"):
        (tools / name).symlink_to(shutil.which(name) or name)
    return tmp_path


def tool(place: Path, name: str, text: str) -> None:
    path = place / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def make(place: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": str(place / "bin")}
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # `make test` may be what runs this
        env.pop(name, None)
    return subprocess.run(
        [str(place / "bin" / "make"), READY],
        cwd=place, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_without_npm_it_says_what_to_install(place: Path) -> None:
    done = make(place)
    assert done.returncode != 0
    assert done.stdout == "npm was not found: install Node 20 or newer (Azurite needs it)\n"


def test_with_a_node_that_is_too_old_it_says_which_one_to_install(place: Path) -> None:
    tool(place, "npm", "#!/bin/bash\nexit 1\n")
    tool(place, "node", OLD.format(node=NODE).replace("/bin/sh", shutil.which("sh") or "/bin/sh"))
    done = make(place)
    assert done.returncode != 0
    assert done.stdout == "Node v18.1.0 is too old: install Node 20 or newer\n"


def test_with_a_node_that_will_do_it_installs_azurite(place: Path) -> None:
    tool(place, "npm", "#!/bin/bash\nmkdir -p devstack/azurite/node_modules\n")
    (place / "bin" / "node").symlink_to(NODE)
    done = make(place)
    assert (done.returncode, done.stderr) == (0, "")
    assert (place / READY).exists()
