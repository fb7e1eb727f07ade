"""What is installed: the version, and the extra that a missing package belongs to."""

from __future__ import annotations

NAME = "scheduler-agent-supervisor"
_PACKAGES_OF_EXTRAS = (
    "aiohttp",
    "azure.data",
    "azure.functions",
    "azure.identity",
    "azure.monitor",
    "cryptography",
    "jinja2",
    "opentelemetry",
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


def lacking(missing: ImportError, extra: str) -> ImportError:
    """Return the error with what to install, if a package of ``extra`` is missing."""
    name = missing.name or getattr(missing.__cause__, "name", "") or ""
    if not f"{name}.".startswith(tuple(f"{package}." for package in _PACKAGES_OF_EXTRAS)):
        return missing
    return ImportError(f"{name} is not installed: run pip install '{NAME}[{extra}]'", name=name)
