"""What the tests of ``infra`` share: places, and the names in Bicep files.

The compiler, its linter and checkov run in CI. Here a few regular expressions read the names that
must agree with the code.
"""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
MAIN = (INFRA / "main.bicep").read_text()
APP = (INFRA / "modules" / "function-app.bicep").read_text()
ACCESS = (INFRA / "access" / "access.bicep").read_text()
PARAMETERS: dict[str, Any] = json.loads((INFRA / "main.parameters.json").read_text())["parameters"]
LOCAL: dict[str, str] = json.loads((ROOT / "local.settings.json").read_text())["Values"]
SPAN_BYTES_AN_ORDER_MAX = 9_700
"""What the traces of one order may be at Application Insights: the daily cap follows from it."""
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


def read_yaml(path: Path) -> Any:
    """Return what a YAML file has."""
    return importlib.import_module("yaml").safe_load(path.read_text(encoding="utf-8"))
