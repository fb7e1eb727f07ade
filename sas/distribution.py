"""What is installed: the version, its files, and the extra that a missing package belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "scheduler-agent-supervisor"
FILES = "project_files"
_PACKAGES_OF_EXTRAS = (
    "aiohttp",
    "azure.data",
    "azure.functions",
    "azure.identity",
    "azure.monitor",
    "cryptography",
    "jinja2",
    "opentelemetry",
    "packaging",
    "pytest",
    "rich",
    "typer",
)


def version() -> str:
    """Return the version of the installed package, or of the working copy."""
    import tomllib  # noqa: PLC0415  # few need it, and `import sas` must stay cheap
    from importlib import metadata  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[1] / "pyproject.toml"
        text = project.read_text(encoding="utf-8")
        return str(tomllib.loads(text)["project"]["version"])


def files() -> Path:
    """Return where the files of a project and the pages are.

    The wheel has them in ``FILES`` beside this module, where tools/wheel.py puts them. A working
    copy has them in their places.
    """
    from pathlib import Path  # noqa: PLC0415  # see above

    packaged = Path(__file__).with_name(FILES)
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[1]


def lacking(missing: ImportError, extra: str) -> ImportError:
    """Return the error with what to install, if a package of ``extra`` is missing."""
    name = missing.name or getattr(missing.__cause__, "name", "") or ""
    if not f"{name}.".startswith(tuple(f"{package}." for package in _PACKAGES_OF_EXTRAS)):
        return missing
    return ImportError(f"{name} is not installed: run pip install '{NAME}[{extra}]'", name=name)
