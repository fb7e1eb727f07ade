"""Which system ``sas azd export``, ``restore`` and ``smoke`` work on: the one that azd deployed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sas.adapters.endpoints import Endpoint
from sas.cli import smoke
from sas.cli.main import main
from sas.cli.system import Storage
from sas.deploy import backup
from sas.environment import service_bus
from tests.infra.azd_kit import DEPLOYED
from tests.infra.kit import ROOT
from tests.infra.stand_ins import Cloud

AZURE = "https://stshop.table.core.windows.net"
VALUES = {
    **DEPLOYED,
    "AZURE_ENV_NAME": "shop",
    "ServiceBus__fullyQualifiedNamespace": "sb-1.servicebus.windows.net",
    "SAS_TABLES__endpoint": AZURE,
}
LOCAL = {
    "ServiceBus": "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b",
    "SAS_TABLES": "AccountName=local;AccountKey=a2V5;TableEndpoint=http://127.0.0.1:10002/local;",
}
Copies = list[tuple[Endpoint, str]]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    """Which tables were copied, by a shell with the settings that ``make up`` prints."""
    calls: Copies = []

    async def copy(endpoint: Endpoint, table: str, *_: object) -> None:
        calls.append((endpoint, table))

    monkeypatch.setattr(backup, "export", copy)
    monkeypatch.setattr(backup, "restore", copy)
    for name, value in LOCAL.items():
        monkeypatch.setenv(name, value)
    return calls


def azd(path: Path, monkeypatch: pytest.MonkeyPatch, values: Mapping[str, str]) -> Cloud:
    monkeypatch.setenv("PATH", str(path))
    return Cloud(path, azd=values)


def test_the_table_is_that_of_azd_or_none_and_its_account_is_named_first(
    tmp_path: Path,
    copies: Copies,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for action in ("export", "restore"):
        azd(tmp_path, monkeypatch, VALUES)
        assert main(["azd", action, "orders.jsonl.gz"]) == 0
        assert copies.pop() == (Endpoint(address=AZURE), "orders")
        assert capsys.readouterr().out == (
            "Table orders of stshop.table.core.windows.net, from azd's environment shop\n"
        )
        assert {name: os.environ.get(name) for name in LOCAL} == LOCAL
        azd(tmp_path, monkeypatch, {"AZURE_ENV_NAME": "shop"})
        assert main(["azd", action, "orders.jsonl.gz"]) == 1
        assert copies == []
        assert "`azd env refresh` if GitHub made it" in capsys.readouterr().err


def test_no_other_table_is_taken_if_the_environment_of_azd_cannot_be_read(
    tmp_path: Path,
    copies: Copies,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / ".azure" / "shop").mkdir(parents=True)
    (tmp_path / ".azure" / "shop" / ".env").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["azd", "export", "orders.jsonl.gz"]) == 1
    assert copies == []
    assert "azd was not found on PATH" in capsys.readouterr().err


def test_without_azd_the_table_is_that_of_the_shell(
    copies: Copies, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["azd", "export", "orders.jsonl.gz"]) == 0
    assert copies == [(Endpoint(LOCAL["SAS_TABLES"]), "orders")]
    printed = capsys.readouterr().out
    assert printed == "Table orders of 127.0.0.1:10002, from variables of this shell\n"


def test_the_account_of_a_connection_string_has_a_name() -> None:
    text = "AccountName=shop;AccountKey=a2V5==;EndpointSuffix=core.windows.net"
    assert Storage(Endpoint(text), "orders").account == "shop"
    assert Storage(Endpoint("UseDevelopmentStorage=true"), "orders").account == "Azurite"


def test_the_order_of_smoke_goes_to_the_namespace_of_azd(
    tmp_path: Path, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    azd(tmp_path, monkeypatch, VALUES)
    monkeypatch.chdir(ROOT)
    namespaces = []

    async def look(*_: object, **__: Any) -> int:
        namespaces.append(service_bus(os.environ))
        return 0

    monkeypatch.setattr(smoke, "_smoke", look)
    assert main(["azd", "smoke"]) == 0
    assert namespaces == ["sb-1.servicebus.windows.net"]
    assert copies == []
