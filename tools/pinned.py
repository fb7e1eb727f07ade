"""Ask GitHub whether what the workflows pin exists: ``python -m tools.pinned``.

An action is pinned by a commit, and the comment beside it says the version. The tag of that version
must be that commit. azd and Bicep are pinned by version, and must have been released. Packages are
not asked for: the workflows install them by their hashes. It needs gh, signed in.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from sas.deploy.commands import CommandFailedError, run

ROOT = Path(__file__).parents[1]
_ACTION = re.compile(r"uses: ([\w.-]+/[\w.-]+)[\w./-]*@([0-9a-f]{40}) # (v[\d.]+)")
_AZD = re.compile(r"uses: Azure/setup-azd@.*\n\s+with:\n\s+version: (\S+)")
_BICEP = re.compile(r"az bicep install --version (\S+)")


def pins(root: Path = ROOT) -> Iterator[tuple[str, str, str]]:
    """Yield each pin once: the repository, the tag, and the commit (empty: any)."""
    paths = sorted((root / ".github").rglob("*.yml"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    for repository, commit, tag in sorted(set(_ACTION.findall(text))):
        yield repository, tag, commit
    for version in sorted(set(_AZD.findall(text))):
        yield "Azure/azure-dev", f"azure-dev-cli_{version}", ""
    for version in sorted(set(_BICEP.findall(text))):
        yield "Azure/bicep", version, ""


def problem(repository: str, tag: str, commit: str) -> str:
    """Return what is wrong with a pin, or an empty text.

    Raises:
        CommandFailedError: GitHub could not be asked.
    """
    path = f"repos/{repository}/commits/refs/tags/{tag}"
    try:
        # This call follows a tag to its commit, also an annotated one (zizmorcore/zizmor 972).
        actual = run("gh", "api", path, "--jq", ".sha")
    except CommandFailedError as error:
        if "No commit found" in error.text:
            return f"{repository} has no tag {tag}: pin a version that was released"
        raise
    if commit and actual != commit:
        return f"{repository}: {tag} is commit {actual}, and {commit} is pinned"
    return ""


def main() -> int:
    """Print what is wrong; return 1 if anything is."""
    listed = list(pins())
    problems = [text for pin in listed if (text := problem(*pin))]
    for text in problems:
        print(text)
    print(f"{len(listed)} pins, {len(problems)} wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
