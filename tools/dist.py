"""Builds both packages into build/dist: ``python -m tools.dist``.

It builds from a copy of the files that git knows. So no other file gets in, and no file is changed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (".", "devstack")
_BUILD = "from setuptools import build_meta as b; b.build_sdist({0!r}); b.build_wheel({0!r})"


def build(to: Path) -> list[Path]:
    """Build a wheel and an sdist of each project into ``to``; return them."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as copy:
        _copy(Path(copy))
        for project in PROJECTS:
            ran = subprocess.run(  # noqa: S603  # our own command
                [sys.executable, "-c", _BUILD.format(str(to.resolve()))],
                cwd=Path(copy, project),
                capture_output=True,
                text=True,
                check=False,
            )
            if ran.returncode:
                raise SystemExit(f"{project} could not be built:\n{ran.stderr}")
    return sorted(to.iterdir())


def _copy(to: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # not deleted since the last commit
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)


def main(argv: list[str] | None = None) -> int:
    """Build, and name what was built."""
    parser = argparse.ArgumentParser(prog="python -m tools.dist", description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "dist", metavar="DIR")
    for path in build(parser.parse_args(argv).to):
        print(f"{path}  {path.stat().st_size // 1024} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
