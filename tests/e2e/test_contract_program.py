"""The JavaScript program in the README of the contract."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.unit.contract_files import FOLDER


def test_the_program_in_the_readme_of_the_contract_is_valid_javascript(tmp_path: Path) -> None:
    [program] = re.findall(r"(?s)```js\n(.*?)```", (FOLDER / "README.md").read_text("utf-8"))
    path = tmp_path / "order.mjs"
    path.write_text(program, "utf-8")
    node = shutil.which("node")
    assert node is not None
    done = subprocess.run([node, "--check", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
