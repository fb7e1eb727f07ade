"""Check that a tag is the version of both packages: ``python -m tools.release v0.1.0``."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return what keeps this tag from being released."""
    found = []
    for path in (root / "pyproject.toml", root / "devstack" / "pyproject.toml"):
        version = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["version"]
        if tag != f"v{version}":
            name = path.relative_to(root)
            found.append(f"{name} has version {version}: tag v{version}, or change the version")
    heading = f"## {tag.removeprefix('v')}\n"
    if heading not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        found.append(f'CHANGELOG.md has no heading "{heading.strip()}": write it, without a remark')
    return found


def main() -> int:
    """Print the problems; return 1 if there are any."""
    found = problems(sys.argv[1])
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
