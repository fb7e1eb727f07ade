"""The files of a project: what ``sas new`` writes, and what ``sas infra`` adds to deploy it.

A project is deployed with the Bicep and the workflows of this repository, and ``sas infra`` copies
them. The files that only a project has are in ``template/``. ``sas.distribution.files`` says where
all of them are. This module uses only the standard library, because the build of the wheel imports
it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from sas.distribution import files, version

TEMPLATE = "template/"
WORKFLOW = "template/.github/"
NEW = ("host.json", TEMPLATE)
"""The files of every project, and the folders (with a slash at the end). The template's files go to
the top, without ``WORKFLOW``."""
DEPLOYMENT = (
    "infra/",
    "azure.yaml",
    ".funcignore",
    ".github/actions/",
    ".github/workflows/backup.yml",
    ".github/workflows/deploy.yml",
    ".github/workflows/deploy-stage.yml",
    WORKFLOW,
)
"""The files that a project needs to be deployed."""
PAGES = ("docs/", "CHANGELOG.md", "samples/claim/claim.py", "samples/claim/test_claim.py")
"""The pages that ``sas docs`` shows, with ``infra/README.md``: also a whole saga and its tests."""
WHEELS = {
    "requirements.in": "scheduler_agent_supervisor",
    "requirements-dev.txt": "scheduler_agent_supervisor_devstack",
}
"""The wheels that a project can get, each by the requirements file that names it."""
_NOT_PAGES = ("docs/site/", "docs/images/")
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
    if project.exists() and any(project.iterdir()):
        raise ProjectError(f"{project} is not empty: name a new directory")
    name = _name(project)
    wheel_of = _wheels(wheels) if wheels else {}
    for source in sources(NEW):
        if not source.startswith(WORKFLOW):
            _copy(source, project, name)
    for requirements, wheel in wheel_of.items():
        _pin(project / requirements, wheel)


def add_deployment(project: Path) -> list[str]:
    """Write what a project needs to be deployed, if it has no ``infra/`` yet; return the paths.

    A file that is there stays as it is.

    Raises:
        ProjectError: the directory cannot be the name of a project.
    """
    if (project / "infra").is_dir():
        return []
    name = _name(project)
    paths = [_copy(source, project, name) for source in sources(DEPLOYMENT)]
    return [path for path in paths if path]


def sources(listed: tuple[str, ...], root: Path | None = None) -> Iterator[str]:
    """Yield the path of each listed file, and of each file in the listed folders."""
    root = root or files()
    for source in listed:
        if not source.endswith("/"):
            yield source
            continue
        for path in sorted((root / source).rglob("*")):
            name = path.relative_to(root).as_posix()
            is_source = path.is_file() and "__pycache__" not in path.parts
            if is_source and not name.startswith(_NOT_PAGES):
                yield name


def _name(project: Path) -> str:
    name = project.resolve().name.lower().replace("_", "-")
    if not _NAME.fullmatch(name):
        raise ProjectError(
            f"{project.resolve().name!r} cannot be the name of a project: "
            "use letters and digits, with - between them"
        )
    return name


def _copy(source: str, project: Path, name: str) -> str:
    """Write a file of the project; return its path, or an empty text if it is there already."""
    target = source.removeprefix(TEMPLATE)
    path = project / target
    if path.exists():
        return ""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (files() / source).read_text(encoding="utf-8")
    path.write_text(_filled(source, text, name), encoding="utf-8")
    return target


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
    """Copy a wheel into the project, and let pip and uv look for this package nowhere else."""
    copy = requirements.parent / "wheels" / wheel.name
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(wheel, copy)
    text = requirements.read_text(encoding="utf-8")
    requirements.write_text(f"./wheels/{wheel.name}\n{text}", encoding="utf-8")
