"""What the tests of ``infra`` share: places, tools they need, and copies broken on purpose."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.infra_bicep import BicepFile, read_all

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
SHARED = ROOT.parent / "shared" / "data"
REQUIRED = "SAS_INFRA_TOOLS_REQUIRED"


def need_tool(there: bool, name: str, how: str) -> None:
    """Skip with a reason; where the tools are required (the GitHub workflow), fail instead."""
    if there:
        return
    said = f"{name} is not installed: {how}"
    if os.environ.get(REQUIRED):
        pytest.fail(said)
    pytest.skip(said, allow_module_level=True)


def need_module(name: str) -> None:
    """Skip a test module that a development dependency is missing for."""
    need_tool(importlib.util.find_spec(name) is not None, name, "it is in requirements-dev.txt")


def need_shared(path: Path) -> None:
    """Skip where the published definitions are not beside the project, as on GitHub.

    There ``test_open_enums.py`` and the compiler stand in; ``pytest -rs`` lists what is skipped.
    """
    if not path.is_dir():
        reason = f"the published definitions are not beside the project: {path.name}"
        pytest.skip(reason, allow_module_level=True)


def broken_copy(to: Path, file: str, old: str, new: str) -> Path:
    """Copy ``infra``, with one text replaced; it must have been there."""
    made = to / "infra"
    shutil.copytree(INFRA, made)
    text = (made / file).read_text()
    assert old in text, f"{file} has changed: {old!r} is not in it, so nothing would be broken"
    (made / file).write_text(text.replace(old, new, 1))
    return made


def bicep(root: Path = INFRA) -> Mapping[Path, BicepFile]:
    """Return every Bicep file, parsed."""
    return read_all(root.resolve())
