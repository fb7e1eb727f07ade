"""Looks whether Azure runs the functions that were deployed: the first part of ``sas azd smoke``.

A deployment can be green and have no function at all, for example if a package is missing in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from sas.deploy.azd import DeploymentRefusedError
from sas.deploy.commands import az
from sas.deploy.deploy import site_of
from sas.deploy.package import FUNCTIONS


def packaged(zip_path: Path) -> set[str]:
    """Return the names of the functions of a zip of ``sas azd package``.

    Raises:
        DeploymentRefusedError: there is no such file, or it is another one.
    """
    if not zip_path.is_file():
        raise DeploymentRefusedError(f"There is no {zip_path}: run `sas azd package` first")
    try:
        with ZipFile(zip_path) as archive:
            return set(archive.read(FUNCTIONS).decode().split())
    except (BadZipFile, KeyError):
        raise DeploymentRefusedError(
            f"{zip_path} is no zip of `sas azd package`; an artifact of GitHub has app.zip inside: "
            "unpack it"
        ) from None


def deployed(env: Mapping[str, str]) -> set[str]:
    """Return the names of the functions that Azure knows of the app.

    Raises:
        DeploymentRefusedError: azd knows no function app.
        CommandFailedError: az failed.
    """
    _, _, _, _, group, *_, app = site_of(env).split("/")
    words = ("functionapp", "function", "list", "--resource-group", group, "--name", app)
    return {function["name"].rpartition("/")[2] for function in az(env, *words) or ()}


def difference(expected: set[str], actual: set[str]) -> str:
    """Return in words how the functions differ; an empty text if they do not."""
    parts = (("lacks", expected - actual), ("still has", actual - expected))
    texts = [f"{verb} {', '.join(sorted(names))}" for verb, names in parts if names]
    return f"Azure has {len(actual)} functions: it {', and '.join(texts)}" if texts else ""
