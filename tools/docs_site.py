"""Build the documentation as a site: ``make docs`` installs what it needs and runs this.

Many pages are not in ``docs``, but beside the code that they describe. All pages are copied to one
tree, with the files that they link to, so that MkDocs can check every link (``strict``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
PAGES = ROOT / "build" / "docs" / "pages"
MERMAID = SITE / "node_modules" / "@mermaid-js" / "tiny" / "dist" / "mermaid.tiny.js"
FOLDERS = ("docs", "infra", "samples", "lab", "devstack", "sas", "orders", "tools", "tests")
_LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")


def pages(root: Path = ROOT) -> list[Path]:
    """Return every page, relative to the root."""
    paths = [*root.glob("*.md"), *(p for name in FOLDERS for p in (root / name).rglob("*.md"))]
    return sorted(path.relative_to(root) for path in paths if "node_modules" not in path.parts)


def linked(page: Path, root: Path = ROOT) -> Iterator[Path]:
    """Yield the files of the project that a page links to, relative to the root."""
    for target in _LINK.findall((root / page).read_text(encoding="utf-8")):
        path = Path(os.path.normpath(page.parent / target))
        if (root / path).is_file():
            yield path


def stage(to: Path = PAGES, root: Path = ROOT) -> None:
    """Copy the pages, and the files that they link to."""
    shutil.rmtree(to, ignore_errors=True)
    staged = pages(root)
    for path in sorted({*staged, *(file for page in staged for file in linked(page, root))}):
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, to / path)


def build(python: str = sys.executable) -> int:
    """Build the site from the copied pages; return MkDocs' exit code, 1 for a broken link."""
    shutil.copy(MERMAID, PAGES / "mermaid.js")
    # Without --quiet, which would hide warnings from strict mode too.
    words = [python, "-m", "mkdocs", "build", "-f", str(SITE / "mkdocs.yml")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's advertisement for its successor
    return subprocess.run(words, check=False, env=env).returncode  # noqa: S603  # our own command


def main() -> int:
    """Copy the pages and build the site; return MkDocs' exit code."""
    stage()
    code = build()
    if code == 0:
        print("the site is in build/docs/site: open index.html")
    return code


if __name__ == "__main__":
    sys.exit(main())
