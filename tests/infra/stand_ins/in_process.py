"""The commands without processes: many calls of a test take milliseconds instead of seconds."""

from __future__ import annotations

import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.infra.stand_ins.__main__ import main


def call_in_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``sas.deploy.commands`` call the commands of the ``Cloud`` at this path so."""

    def run(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "stdin", StringIO(options.get("input") or ""))
        with redirect_stdout(StringIO()) as output:
            try:
                main(argv)
            except SystemExit as refusal:
                return subprocess.CompletedProcess(argv, 1, "", str(refusal.code))
        return subprocess.CompletedProcess(argv, 0, output.getvalue(), "")

    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr("sas.deploy.commands.subprocess.run", run)
