"""How the wheel of ``sas`` gets the files of a project and the pages: setuptools calls ``BuildPy``.

The files are those of this repository (``sas.project``). Git has no second copy of them. The build
copies them into the wheel. In a working copy ``sas`` reads them where they are.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools.command.build_py import build_py  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]


class BuildPy(build_py):  # type: ignore[misc]  # it has no types
    """Builds the package, and copies the files of projects and the pages into it."""

    def run(self) -> None:
        """See the class."""
        super().run()
        if self.editable_mode:
            return
        sys.path.insert(0, str(ROOT))
        from sas.distribution import FILES  # noqa: PLC0415  # it is importable from here on
        from sas.project import DEPLOYMENT, NEW, PAGES, sources  # noqa: PLC0415

        sys.path.remove(str(ROOT))
        for name in sources((*NEW, *DEPLOYMENT, *PAGES), ROOT):
            target = Path(self.build_lib) / "sas" / FILES / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
