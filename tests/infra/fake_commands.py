"""Commands of Azure and GitHub that answer from a table and note how they were called."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

SCRIPT = """#!{python} -IS
import json, sys
from pathlib import Path
said = [Path(sys.argv[0]).name, *sys.argv[1:]]
given = "" if sys.stdin.isatty() or "--input" not in said else sys.stdin.read()
with Path({log!r}).open("a") as log:
    log.write(json.dumps(said + ([given] if given else [])) + "\\n")
for begins, answer in {answers!r}.items():
    if " ".join(said).startswith(begins):
        if answer is None:
            sys.exit("refused")
        sys.stdout.write(answer)
        break
"""


class Commands:
    """A directory of such commands, for PATH."""

    def __init__(self, path: Path, answers: Mapping[str, str | None]) -> None:
        self.path = path
        self._log = path / "log"
        for name in {begins.split()[0] for begins in answers}:
            command = path / name
            command.write_text(
                SCRIPT.format(python=sys.executable, log=str(self._log), answers=dict(answers))
            )
            command.chmod(0o755)

    def called(self, begins: str = "") -> list[list[str]]:
        """Return the calls that begin so, in order."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        calls: list[list[str]] = [json.loads(line) for line in lines]
        return [call for call in calls if " ".join(call).startswith(begins)]
