"""``sas new``: a project in a new directory. ``sas upgrade``: what the template changed since."""

from __future__ import annotations

import difflib
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from sas.distribution import version
from sas.project import template

MANIFEST = Path(".sas", "template.json")
BASE = Path(".sas", "base")
"""The files as the template wrote them: a later upgrade tells its changes from the user's."""
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
    """One file that the template changed. ``base`` is None if no earlier template wrote it."""

    path: str
    step: Step
    base: str | None
    mine: str
    after: str

    def diff(self) -> str:
        """Return what the template changed, as ``diff -u`` writes it."""
        name, text = ("yours", self.mine) if self.base is None else ("base", self.base)
        before, after = (one.splitlines(keepends=True) for one in (text, self.after))
        names = f"{name}/{self.path}", f"template/{self.path}"
        return "".join(difflib.unified_diff(before, after, *names))


def create(project: Path, wheels: Path | None = None) -> str:
    """Write a project and return its name.

    Raises:
        ProjectError: the directory holds something, or cannot be the name of a project.
    """
    name = project.resolve().name.lower().replace("_", "-")
    if not _NAME.fullmatch(name):
        raise ProjectError(
            f"{project.name!r} cannot be the name of a project: "
            "use letters and digits, with - between them"
        )
    if project.exists() and any(project.iterdir()):
        raise ProjectError(f"{project} is not empty: name a new directory")
    found = sorted(wheels.glob(_WHEEL)) if wheels else []
    if wheels and not found:
        raise ProjectError(f"{wheels} holds no {_WHEEL}: run `make dist`, or leave --wheels out")
    project.mkdir(parents=True, exist_ok=True)
    template.make(project, name, version())
    written = _texts(project)
    if found:
        (project / WHEELS).mkdir()
        for wheel in found:
            shutil.copy(wheel, project / WHEELS)
    _remember(project, name, written)
    return name


def since(project: Path) -> str:
    """Return the version whose template wrote the project, or was last applied to it.

    Raises:
        ProjectError: it was not written by ``sas new``.
    """
    return str(_manifest(project)["version"])


def changes(project: Path) -> list[Change]:
    """Return what the installed template changed since that version.

    Raises:
        ProjectError: it was not written by ``sas new``.
    """
    made, base = _made(str(_manifest(project)["name"])), _texts(project / BASE)
    found = []
    for path, text in made.items():
        mine = _text(project / path) if (project / path).is_file() else None
        if text in {mine, base.get(path)}:
            continue
        if path not in base:
            step = Step.ADD if mine is None else Step.MERGE
        elif mine is None:
            continue  # you removed it
        else:
            step = Step.UPDATE if mine == base[path] else Step.MERGE
        found.append(Change(path, step, base.get(path), mine or "", text))
    gone = (path for path in sorted(set(base) - set(made)) if (project / path).is_file())
    untouched = (path for path in gone if _text(project / path) == base[path])
    return found + [Change(path, Step.REMOVE, base[path], base[path], "") for path in untouched]


def apply(project: Path, found: list[Change]) -> None:
    """Write the changes. The template's version of a file to merge goes into ``NAME.template``.

    Raises:
        ProjectError: such a file of an earlier upgrade is still there.
    """
    merges = {_beside(change.path) for change in found if change.step is Step.MERGE}
    if waiting := sorted(merges & set(unmerged(project))):
        raise ProjectError(
            f"{', '.join(waiting)} of an earlier upgrade is not merged: merge it into yours, "
            "remove it, then apply this one"
        )
    for change in found:
        if change.step is Step.REMOVE:
            (project / change.path).unlink()
            continue
        path = change.path if change.step is not Step.MERGE else _beside(change.path)
        _write(project / path, change.after)
    name = str(_manifest(project)["name"])
    _remember(project, name, _made(name))


def unmerged(project: Path) -> list[str]:
    """Return the ``NAME.template`` files that are still there."""
    names = (_beside(path) for path in sorted(_texts(project / BASE)))
    return [name for name in names if (project / name).is_file()]


def _beside(path: str) -> str:
    return f"{path}.template"


def _made(name: str) -> dict[str, str]:
    """Return what the installed template writes, by path."""
    with tempfile.TemporaryDirectory() as made:
        template.make(Path(made), name, version())
        return _texts(Path(made))


def _texts(directory: Path) -> dict[str, str]:
    """Return the text of each file below, by path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): _text(path) for path in files}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _manifest(project: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(_text(project / MANIFEST))
    except FileNotFoundError:
        raise ProjectError(
            f"{project / MANIFEST} is not there: `sas upgrade` is for a project of `sas new`"
        ) from None
    return found


def _remember(project: Path, name: str, written: dict[str, str]) -> None:
    """Keep what the template wrote, and its version."""
    if (project / BASE).exists():
        shutil.rmtree(project / BASE)
    for path, text in written.items():
        _write(project / BASE / path, text)
    content = {"name": name, "version": version()}
    _write(project / MANIFEST, json.dumps(content, indent=2) + "\n")
