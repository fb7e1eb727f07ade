from __future__ import annotations

import os
from pathlib import Path

import pytest

from sas.adapters.endpoints import Endpoint
from sas.cli.arguments import Connection, read_connection
from sas.cli.main import VERBS, main
from sas.domain.queues import Queues
from sas.operate.errors import USAGE, UsageError

CONNECTION = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=k;"


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("ServiceBus", "SAS_", "AzureWebJobs")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ServiceBus", CONNECTION)
    monkeypatch.setenv("SAS_REPLY_QUEUE", "responses-web-shop")


def orders(tmp_path: Path) -> str:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"order_id": "A-1"}\n')
    return str(file)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_command_describes_itself(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ("submit" in text and "130 interrupted" in text) or text.startswith("sas 0.")


def test_the_help_of_submit_shows_both_forms_and_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["submit", "--help"])
    text = capsys.readouterr().out
    for part in ("order message", "bare order", "sas submit samples/northwind-orders.jsonl"):
        assert part in text


def test_every_verb_says_what_it_does_and_shows_an_example() -> None:
    for verb in VERBS:
        assert len(verb.summary) < 80
        assert f"\n  sas {verb.name}" in verb.description


@pytest.mark.parametrize(
    "arguments",
    [
        ["greet"],
        ["submit"],
        ["submit", "x", "--colour"],
        ["submit", "x", "--patience", "0"],
        ["submit", "x", "--patience", "soon"],
        ["submit", "x", "--patience", "nan"],
    ],
)
def test_bad_usage_ends_with_2_and_a_usage_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == USAGE
    assert "usage: sas" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "arguments", "sentence"),
    [
        ({"ServiceBus": ""}, [], "or set ServiceBus to"),
        ({"ServiceBus": "nowhere"}, [], "neither a connection string"),
        ({"ServiceBus": "Endpoint=sb://x"}, [], "connection string cannot be read"),
        ({"SAS_QUEUE_ORDERS": "a/b"}, [], "SAS_QUEUE_ORDERS='a/b': use letters, digits"),
        ({"SAS_REPLY_QUEUE": ""}, [], "give --reply-queue responses-NAME"),
        ({}, ["--reply-queue", "orders"], "must begin with 'responses-'"),
        ({"SAS_QUEUE_RESPONSE_PREFIX": "to-"}, [], "must begin with 'to-'"),
    ],
)
def test_a_setting_that_is_missing_or_wrong_is_named(
    change: dict[str, str],
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    assert main(["submit", orders(tmp_path), *arguments]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith("sas: ")
    assert sentence in error
    assert "Traceback" not in error


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (tmp_path / "missing.json", tmp_path):
        assert main(["submit", str(name)]) == USAGE
        assert str(name) in capsys.readouterr().err


def test_the_connection_comes_from_the_environment() -> None:
    def connection_of(**env: str) -> Connection:
        return read_connection("responses-a", env)

    assert connection_of(ServiceBus="a=1") == Connection(
        endpoint=Endpoint("a=1"),
        reply_queue="responses-a",
        queues=Queues(),
        order_bytes_max=258_048,
    )
    premium = connection_of(ServiceBus="b=2", SAS_MESSAGE_BYTES_MAX="1048576")
    assert premium.order_bytes_max == 1_044_480
    assert connection_of(AzureWebJobsServiceBus="c=3").endpoint.connection_string == "c=3"
    by_identity = connection_of(ServiceBus__fullyQualifiedNamespace="n.servicebus.windows.net")
    assert by_identity.endpoint == Endpoint(address="n.servicebus.windows.net")
    assert connection_of(ServiceBus="a=1", SAS_QUEUE_ORDERS="in").queues.orders == "in"
    with pytest.raises(UsageError):
        connection_of(ServiceBus="https://n.servicebus.windows.net/")
