"""What ``sas new`` writes: files of this repository, changed for a project of one's own.

In a wheel they are in ``files/`` beside this module (tools/wheel.py puts them there). In a working
copy they are read where they are. Standard library only: the build of the wheel imports this.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FILES = "files"
TEMPLATE = "template/"
SOURCES = (
    *(TEMPLATE, "infra/", "azure.yaml", "host.json", "local.settings.json", ".funcignore"),
    *("tools/__init__.py", "tools/azd_hooks.py", "tools/github_deploy.py"),
    *("tools/infra_queues.py", "tools/queues.py", ".github/workflows/deploy.yml"),
)
"""The files, and with a slash at the end whole folders. The template's lie at the project's top."""
BUSINESS = {"STOCK_URL": "http://127.0.0.1:7201", "PAYMENT_URL": "http://127.0.0.1:7201"}
"""Settings of the template's business, and their values on one machine."""
_MAKE_INFRA = (*("--agents", "stock", "payment", "--applications", "web", "--settings", *BUSINESS),)
_OF_THE_SAMPLE = "ORDERS_"
_AWAY = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")
"""A link to a file of this repository that the project does not get."""
_OF_THIS_REPOSITORY = "## What is checked without Azure"
"""The rest of infra/README.md is about tests that the project does not get."""
_CHECKS = ("the checks `tests`, `infra` and `audit`", "the check `test`")
"""What a rule for the branch requires: here, and in the project, whose workflow has one job."""
_SETTING = re.compile(r"^( +azd env set )ORDERS_STOCK_URL.*$", re.MULTILINE)
_IGNORED = {"__pycache__"}


def sources(root: Path) -> Iterator[str]:
    """Return the path of each file below ``root``."""
    for source in SOURCES:
        if not source.endswith("/"):
            yield source
            continue
        for path in sorted((root / source).rglob("*")):
            if path.is_file() and not _IGNORED & set(path.parts):
                yield path.relative_to(root).as_posix()


def make(project: Path, name: str, version: str) -> None:
    """Write a project called ``name`` into a directory that is there."""
    root = _root()
    for source in sources(root):
        target = project / source.removeprefix(TEMPLATE)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (root / source).read_text(encoding="utf-8")
        target.write_text(_changed(source, text, name, version), encoding="utf-8")
    subprocess.run(  # noqa: S603  # a file that was written just now
        [sys.executable, "-m", "tools.queues", *_MAKE_INFRA],
        cwd=project, check=True, capture_output=True,
    )  # fmt: skip
    for cache in project.rglob("__pycache__"):
        shutil.rmtree(cache)


def _root() -> Path:
    here = Path(__file__).resolve().parent
    return here / FILES if (here / FILES).is_dir() else here.parents[1]


def _changed(source: str, text: str, name: str, version: str) -> str:
    if source.startswith(TEMPLATE):
        return text.replace("@VERSION@", version).replace("@NAME@", name)
    match source:
        case "azure.yaml":
            return re.sub(r"^name: .*$", f"name: {name}", text, flags=re.MULTILINE)
        case "local.settings.json":
            settings = json.loads(text)
            kept = {n: v for n, v in settings["Values"].items() if not n.startswith(_OF_THE_SAMPLE)}
            settings["Values"] = kept | BUSINESS
            return json.dumps(settings, indent=2) + "\n"
        case "infra/README.md":
            text = _AWAY.sub(r"\1", text.partition(_OF_THIS_REPOSITORY)[0].rstrip() + "\n")
            text = text.replace(*_CHECKS)
            return _SETTING.sub(r"\1STOCK_URL https://...    # and PAYMENT_URL", text)
    return text
