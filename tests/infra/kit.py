"""What the tests of ``infra`` share: places, and the names in Bicep files.

The compiler, its linter and checkov run in CI. Here a few regular expressions read the names that
must agree with the code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
_DECLARED = re.compile(
    r"^(resource|module) (\w+) '([^']+)'(?: existing)? = (.*?)^\}", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A resource or a module: its symbol, its type or file (``target``), and the text of it."""

    kind: str
    symbol: str
    target: str
    text: str


def declared(path: Path, kind: str) -> list[Declared]:
    """Return the resources, or the modules, of a file of ``infra``."""
    declarations = _DECLARED.findall((INFRA / path).read_text())
    return [
        Declared(kind=kind, symbol=symbol, target=target, text=text)
        for word, symbol, target, text in declarations
        if word == kind
    ]


def parameters(path: Path) -> dict[str, bool]:
    """Return the parameters of a file of ``infra``, and whether each has a default."""
    declarations = re.findall(r"^param (\w+) \w+( = )?", (INFRA / path).read_text(), re.MULTILINE)
    return {name: bool(default) for name, default in declarations}


def bicep_files() -> list[Path]:
    """Return every Bicep file."""
    return sorted(INFRA.rglob("*.bicep"))
