"""The settings of this business: read, refused by name, and on the page of settings."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import orders
from samples.services.contract import SERVICES
from sas import SettingError
from sas.saga import sagas_of
from sas.saga.business import check_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
URLS = {f"ORDERS_{name.upper()}_URL": "http://127.0.0.1:1" for name in SERVICES}


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Set the addresses. The module of the sample is as before at the end."""
    for name, value in URLS.items():
        monkeypatch.setenv(name, value)
    before = dict(vars(orders))
    yield monkeypatch
    vars(orders).update(before)


def test_a_service_without_an_address_is_refused_by_the_name_of_its_setting(
    env: pytest.MonkeyPatch,
) -> None:
    check_settings(sagas_of(orders))
    for setting, address in [(name, "") for name in URLS] + [
        ("ORDERS_MAIL_URL", "ftp://x"),
        ("ORDERS_CARRIER_URL", "127.0.0.1:3"),
    ]:
        with env.context() as patching:
            patching.setenv(setting, address)
            why = rf"{setting}={address!r}: give the http\(s\) address"
            with pytest.raises(SettingError, match=why):
                check_settings(sagas_of(orders))


def test_a_wrong_setting_of_the_business_is_refused_by_name(env: pytest.MonkeyPatch) -> None:
    for setting, value in (
        ("ORDERS_TIME_ALLOWED_SECONDS", "0"),
        ("ORDERS_TIME_ALLOWED_SECONDS", "86401"),
        ("ORDERS_TIME_ALLOWED_SECONDS", "nan"),
        ("ORDERS_ATTEMPT_SECONDS", "x"),
    ):
        with env.context() as patching:
            patching.setenv(setting, value)
            with pytest.raises(Exception, match=f"{setting}='{value}': give seconds"):
                importlib.reload(orders)


def test_the_time_allowed_is_a_setting(env: pytest.MonkeyPatch) -> None:
    env.setenv("ORDERS_TIME_ALLOWED_SECONDS", "7.5")
    importlib.reload(orders)
    for saga in sagas_of(orders):
        for step in saga.workflow.steps:
            assert step.time_allowed == timedelta(seconds=7.5)
            assert step.undo is not None
            assert step.undo.time_allowed == timedelta(seconds=7.5)


def rows() -> dict[str, list[str]]:
    """Return the cells of each setting of this business on the page."""
    lines = (line.strip("|").split(" | ") for line in PAGE.splitlines() if "| `ORDERS_" in line)
    return {name.strip(" `"): [cell.strip(" `") for cell in cells] for name, *cells in lines}


def test_every_setting_has_a_row_with_its_default_and_every_row_is_read() -> None:
    source = (ROOT / "orders" / "__init__.py").read_text()
    assert set(rows()) == set(re.findall(r"ORDERS_[A-Z_]+[A-Z]", source))
    defaults = dict(re.findall(r'_seconds\("(ORDERS_\w+)", ([0-9.]+)\)', source))
    for name, (shown, unit, meaning) in rows().items():
        assert shown == defaults.get(name, "none").removesuffix(".0")
        assert unit
        assert len(meaning) > 5


def test_every_service_of_the_sample_has_an_address_in_the_local_settings() -> None:
    settings = json.loads((ROOT / "local.settings.json").read_text())["Values"]
    assert set(URLS) <= set(settings)
