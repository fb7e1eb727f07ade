"""What ``sas new`` writes: a small template, and the files of this repository that it runs with.

A project is deployed with the same Bicep and hooks as this repository, so it gets a copy of them.
The files that only a project has are in ``template/``. In a working copy of this repository all of
them are read in their places. The wheel has them in ``project_files/`` beside this module, where
tools/wheel.py puts them. This module uses only the standard library, because the build of the wheel
imports it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sas.distribution import version

FILES = "project_files"
TEMPLATE = "template/"
SOURCES = (
    "infra/",
    "azure.yaml",
    "host.json",
    ".funcignore",
    ".github/workflows/deploy.yml",
    "tools/__init__.py",
    "tools/azd_hooks.py",
    "tools/github_deploy.py",
    "tools/infra_queues.py",
    "tools/queues.py",
    TEMPLATE,
)
"""The files, and the folders (with a slash at the end). The template's files go to the top."""
WHEELS = {
    "requirements.txt": "scheduler_agent_supervisor",
    "requirements-dev.txt": "scheduler_agent_supervisor_devstack",
}
"""The wheels that a project can get, each by the requirements file that names it."""
_QUEUES = ("--agents", "stock", "payment", "--applications", "web")
_SETTINGS = ("--settings", "STOCK_URL", "PAYMENT_URL")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_OUTSIDE_LINK = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")
"""A link to a page of this repository that the project does not get."""
_OF_THIS_REPOSITORY = "## What is checked without Azure"
"""The rest of infra/README.md is about tests that the project does not get."""


class ProjectError(Exception):
    """The project cannot be written. The text says what to do."""


def create(project: Path, wheels: Path | None = None) -> None:
    """Write a project. With ``wheels``, it installs the wheels in that directory.

    Raises:
        ProjectError: the directory holds something, cannot be the name of a project, or has no
            wheels of this version.
    """
    name = project.resolve().name.lower().replace("_", "-")
    if not _NAME.fullmatch(name):
        raise ProjectError(
            f"{project.name!r} cannot be the name of a project: "
            "use letters and digits, with - between them"
        )
    if project.exists() and any(project.iterdir()):
        raise ProjectError(f"{project} is not empty: name a new directory")
    wheel_of = _wheels(wheels) if wheels else {}
    root = _root()
    for source in sources(root):
        path = project / source.removeprefix(TEMPLATE)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (root / source).read_text(encoding="utf-8")
        path.write_text(_filled(source, text, name), encoding="utf-8")
    for requirements, wheel in wheel_of.items():
        _pin(project / requirements, wheel)
    subprocess.run(  # noqa: S603  # a file that was written just now
        [sys.executable, "-B", "-m", "tools.queues", *_QUEUES, *_SETTINGS],
        cwd=project,
        check=True,
        capture_output=True,
    )


def sources(root: Path) -> Iterator[str]:
    """Return the path of each file below ``root``."""
    for source in SOURCES:
        if not source.endswith("/"):
            yield source
            continue
        for path in sorted((root / source).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix()


def _root() -> Path:
    files = Path(__file__).with_name(FILES)
    return files if files.is_dir() else Path(__file__).resolve().parents[1]


def _filled(source: str, text: str, name: str) -> str:
    if source == "azure.yaml":
        return re.sub(r"^name: .*$", f"name: {name}", text, flags=re.MULTILINE)
    if source == "infra/README.md":
        return _OUTSIDE_LINK.sub(r"\1", text.partition(_OF_THIS_REPOSITORY)[0].rstrip() + "\n")
    if source.startswith(TEMPLATE):
        return text.replace("@NAME@", name).replace("@VERSION@", version())
    return text


def _wheels(directory: Path) -> dict[str, Path]:
    """Return the wheels of just this version, whatever else is in the directory."""
    wheels = {
        requirements: directory / f"{package}-{version()}-py3-none-any.whl"
        for requirements, package in WHEELS.items()
    }
    missing = [wheel.name for wheel in wheels.values() if not wheel.is_file()]
    if missing:
        raise ProjectError(
            f"{directory} has no {' and no '.join(missing)}: run `make dist`, or leave --wheels out"
        )
    return wheels


def _pin(requirements: Path, wheel: Path) -> None:
    """Copy a wheel into the project, and let pip install that file and no other.

    pip compares the hash of a file that is named by its URL, and then looks for this package
    nowhere else. A hash as an option of pip would demand one of each other package too.
    """
    copy = requirements.parent / "wheels" / wheel.name
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(wheel, copy)
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    text = requirements.read_text(encoding="utf-8")
    requirements.write_text(f"file:wheels/{wheel.name}#sha256={digest}\n{text}", encoding="utf-8")
