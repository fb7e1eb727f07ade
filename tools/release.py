"""Check that a tag is the version of both packages: ``python -m tools.release v0.1.0``."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return what keeps this tag from being released."""
    lines = []
    for path in (root / "pyproject.toml", root / "devstack" / "pyproject.toml"):
        version = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["version"]
        if tag != f"v{version}":
            name = path.relative_to(root)
            lines.append(f"{name} has version {version}: tag v{version}, or change the version")
    heading = f"## {tag.removeprefix('v')}\n"
    if heading not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        lines.append(f'CHANGELOG.md has no heading "{heading.strip()}": write it, without a remark')
    return lines


def main() -> int:
    """Print the problems; return 1 if there are any."""
    lines = problems(sys.argv[1])
    for problem in lines:
        print(problem)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
