"""docs/settings.md names exactly the settings that the code reads, with their defaults."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from sas.config import QUEUE_SETTINGS, read_config
from sas.deploy.azd import parameter_variables
from sas.domain.queues import Queues
from sas.environment import CONNECTION

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
ROWS = {
    cells[0].strip("`"): cells[1:]
    for cells in (
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in PAGE.splitlines()
        if line.startswith("| `") and not line.startswith("| `ORDERS_")
    )
}
NAME = re.compile(r"SAS_[A-Z_]+[A-Z](?:__[A-Za-z]+)?|WEBSITE_INSTANCE_ID|AzureWebJobsS.*")
IN_FILE = re.compile(r"SAS_[A-Z]|WEBSITE_INSTANCE_ID|AzureWebJobsS|%[A-Z_]+%")
"""A file without any of these reads no setting."""
BOUND = re.compile(r"%([A-Z_]+)%")


def read_by_the_code() -> set[str]:
    names = {CONNECTION, f"{CONNECTION}__fullyQualifiedNamespace", f"{CONNECTION}__clientId"}
    of_the_app = (
        file for file in (ROOT / "sas").rglob("*.py") if "deploy" not in file.parts
    )  # whose variables are azd's
    for file in [*of_the_app, ROOT / "function_app.py"]:
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if IN_FILE.search(text) else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if NAME.fullmatch(node.value) and " " not in node.value:
                    names.add(node.value)
                names |= set(BOUND.findall(node.value))
    return names


def test_every_setting_that_the_code_reads_has_a_row_and_every_row_is_read() -> None:
    assert set(ROWS) == read_by_the_code()


class Asked(dict[str, str]):
    """An environment that remembers which settings were read, and with which default."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.defaults: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        self.defaults.setdefault(key, default)
        return super().get(key, default)


def test_a_row_has_the_default_that_the_code_takes_a_unit_and_a_meaning() -> None:
    environment = Asked({"ServiceBus": "", "ServiceBus__fullyQualifiedNamespace": "a.example"})
    environment["SAS_TABLES"] = "UseDevelopmentStorage=true"
    config = read_config(environment)
    queues = {setting: getattr(Queues(), field) for field, setting in QUEUE_SETTINGS.items()}
    others = {"SAS_TABLES": "AzureWebJobsStorage", "SAS_TELEMETRY": config.telemetry}
    defaults = environment.defaults | queues | others
    for name, (shown, unit, meaning) in ROWS.items():
        default = defaults.get(name)
        text = "none" if default in {None, ""} else f"`{default}`".replace(".0`", "`")
        assert (shown, bool(unit), len(meaning) > 5) == (text, True, True), name


def test_every_setting_that_another_page_names_exists() -> None:
    for page in ("README.md", "docs/your-own-workflow.md", "docs/operating.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        names = set(re.findall(r"\bSAS_[A-Z_]+[A-Z]\b", text))
        assert names - set(ROWS) - set(parameter_variables()) == set()
