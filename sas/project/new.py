"""``sas new``: a project in a new directory. ``sas upgrade``: what the template changed since."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from sas.distribution import version
from sas.project import template

MANIFEST = Path(".sas", "template.json")
WHEELS = "wheels"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_WHEEL = "scheduler_agent_supervisor*.whl"


class ProjectError(Exception):
    """The project cannot be written or upgraded. The text says what to do."""


class Step(Enum):
    """What an upgrade does with a file."""

    ADD = "new in the template"
    UPDATE = "changed in the template"
    MERGE = "changed in the template and by you"
    REMOVE = "no longer in the template"


@dataclass(frozen=True, slots=True)
class Change:
    """One file that the template has otherwise than the project."""

    path: str
    step: Step
    before: str
    after: str

    def diff(self) -> str:
        """Return the difference, as ``diff -u`` writes it."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        names = f"yours/{self.path}", f"template/{self.path}"
        return "".join(difflib.unified_diff(before, after, *names))


def create(project: Path, wheels: Path | None = None) -> str:
    """Write a project and return its name.

    Raises:
        ProjectError: the directory holds something, or cannot be the name of a project.
    """
    name = project.resolve().name.lower().replace("_", "-")
    if not _NAME.fullmatch(name):
        raise ProjectError(
            f"{project.name!r} cannot be the name of a project: use letters, digits and - between"
        )
    if project.exists() and any(project.iterdir()):
        raise ProjectError(f"{project} is not empty: name a new directory")
    found = sorted(wheels.glob(_WHEEL)) if wheels else []
    if wheels and not found:
        raise ProjectError(f"{wheels} holds no {_WHEEL}: run `make dist`, or leave --wheels out")
    project.mkdir(parents=True, exist_ok=True)
    template.make(project, name, version())
    written = {path: _text(project / path) for path in sorted(_files(project))}
    if found:
        (project / WHEELS).mkdir()
        for wheel in found:
            shutil.copy(wheel, project / WHEELS)
    _write_manifest(project, name, written)
    return name


def changes(project: Path) -> list[Change]:
    """Return what the installed template has otherwise than the one that wrote the project.

    Raises:
        ProjectError: it was not written by ``sas new``.
    """
    manifest = _manifest(project)
    known: dict[str, str] = manifest["files"]
    found = []
    now = _made(manifest["name"])
    for path, text in now.items():
        mine = _text(project / path) if (project / path).is_file() else None
        if mine == text or _hash(text) == known.get(path):
            continue
        if path not in known:
            step = Step.ADD if mine is None else Step.MERGE
        elif mine is None:
            continue  # you removed it
        else:
            step = Step.UPDATE if _hash(mine) == known[path] else Step.MERGE
        found.append(Change(path, step, mine or "", text))
    gone = {path: project / path for path in sorted(set(known) - set(now))}
    texts = {path: _text(file) for path, file in gone.items() if file.is_file()}
    untouched = (path for path, text in texts.items() if _hash(text) == known[path])
    return found + [Change(path, Step.REMOVE, texts[path], "") for path in untouched]


def apply(project: Path, found: list[Change]) -> list[str]:
    """Write the changes. Return the files to merge: each is beside yours, as ``NAME.template``."""
    beside = []
    for change in found:
        path = project / change.path
        if change.step is Step.REMOVE:
            path.unlink()
            continue
        if change.step is Step.MERGE:
            path = path.with_name(f"{path.name}.template")
            beside.append(path.relative_to(project).as_posix())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(change.after, encoding="utf-8")
    name = str(_manifest(project)["name"])
    _write_manifest(project, name, _made(name))
    return beside


def _made(name: str) -> dict[str, str]:
    """Return what the installed template writes, by path."""
    with tempfile.TemporaryDirectory() as made:
        template.make(Path(made), name, version())
        return {path: _text(Path(made, path)) for path in sorted(_files(Path(made)))}


def _files(project: Path) -> Iterator[str]:
    return (one.relative_to(project).as_posix() for one in project.rglob("*") if one.is_file())


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _manifest(project: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(_text(project / MANIFEST))
    except FileNotFoundError:
        raise ProjectError(
            f"{project / MANIFEST} is not there: `sas upgrade` is for a project of `sas new`"
        ) from None
    return found


def _write_manifest(project: Path, name: str, written: dict[str, str]) -> None:
    path = project / MANIFEST
    path.parent.mkdir(exist_ok=True)
    files = {name: _hash(text) for name, text in written.items()}
    content = {"name": name, "version": version(), "files": files}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
