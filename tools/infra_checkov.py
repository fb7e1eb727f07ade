"""Checkov over ``infra``, in an environment of its own: python -m tools.infra_checkov --install.

It parses with pycep. On a file that pycep cannot parse, checkov reports nothing and passes. So
the parsed files are counted too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = Path(os.environ.get("SAS_CHECKOV_HOME", ROOT / ".venv" / "checkov"))
VERSION = "3.3.30"
PROBE = """
import json, sys
from pycep import BicepParser
refused = {}
for name in sys.argv[1:]:
    try:
        with open(name) as file:
            BicepParser().parse(text=file.read())
    except Exception as error:
        refused[name] = str(error).splitlines()[0]
print(json.dumps(refused))
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found: failed checks as (id, file, resource), files refused, and checks passed."""

    failed: frozenset[tuple[str, str, str]]
    refused: tuple[str, ...]
    passed: int


def executable() -> Path | None:
    """Return checkov's own interpreter, or that of a checkov on PATH; None without either."""
    own = HOME / "bin" / "python"
    if own.exists():
        return own
    found = shutil.which("checkov")
    beside = Path(found).resolve().parent / "python" if found else None
    return beside if beside and beside.exists() else None


def install() -> None:
    """Make the environment: pip fetches checkov and what it needs."""
    venv.create(HOME, with_pip=True)
    pip = [str(HOME / "bin" / "python"), "-m", "pip", "--quiet"]
    command = [*pip, "install", f"checkov=={VERSION}"]
    subprocess.run(command, check=True)  # noqa: S603  # our own words only


def run(python: Path, infra: Path) -> Report:
    """Check every Bicep file below a directory."""
    files = sorted(str(path) for path in infra.rglob("*.bicep"))
    refused = json.loads(_output([str(python), "-c", PROBE, *files]))
    checkov = str(python.parent / "checkov")
    options = ["--framework", "bicep", "--skip-download", "--output", "json", "--soft-fail"]
    said = json.loads(_output([checkov, "--directory", str(infra), *options]))
    if "results" not in said:
        return Report(frozenset(), tuple(files), 0)
    found = said["results"]
    failed = {
        (each["check_id"], each["file_path"].lstrip("/"), each["resource"].rpartition(".")[2])
        for each in found["failed_checks"]
    }
    return Report(
        frozenset(failed), (*refused, *found["parsing_errors"]), len(found["passed_checks"])
    )


def _output(command: list[str]) -> str:
    environment = {**os.environ, "LOG_LEVEL": "ERROR"}
    done = subprocess.run(  # noqa: S603  # our own words only
        command, check=True, capture_output=True, text=True, env=environment
    )
    return done.stdout


def main() -> int:
    """Install if asked, then print what was found."""
    if "--install" in sys.argv[1:]:
        install()
    python = executable()
    if python is None:
        print("checkov is not installed: python -m tools.infra_checkov --install")
        return 2
    report = run(python, ROOT / "infra")
    for check, file, resource in sorted(report.failed):
        print(f"{check} {file} {resource}")
    print(f"{report.passed} passed, {len(report.failed)} failed, {len(report.refused)} refused")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
