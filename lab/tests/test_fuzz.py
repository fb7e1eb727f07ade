"""The fuzz itself: its inputs repeat, and it finds defects."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from lab.fuzz.__main__ import main
from lab.fuzz.run import Fuzz, doors
from sas.features.queue_delay.excuses import _owner as owner_of


@pytest.fixture(autouse=True)
def logging_is_on_again() -> Iterator[None]:
    """The fuzz turns logging off in its process; other tests here read logs."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def fuzz() -> Fuzz:
    return Fuzz(1)


def test_every_one_of_200_inputs_is_accepted_or_refused_with_a_clear_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--inputs", "200", "--jobs", "1"]) == 0, capsys.readouterr().out
    output = capsys.readouterr().out
    assert all(door.name in output for door in doors())
    assert "0 went wrong" in output


@pytest.mark.long
def test_every_one_of_3000_other_inputs_is_accepted_or_refused_with_a_clear_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    exit_code = main(["--inputs", "3000", "--seed", "2", "--jobs", "1"])
    assert exit_code == 0, capsys.readouterr().out


def test_an_undocumented_exception_is_found(fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: bytes) -> object:
        value = json.loads(text)
        if isinstance(value, dict) and value.get("seq") == 7:
            raise ZeroDivisionError("seven")
        return value

    monkeypatch.setattr("sas.codec.internal.parse", broken)
    body = b'{"format":1,"kind":"wake","id":"m","order_id":"O-done","seq":7}'
    parts = {"queue": "scheduler", "body": body, "properties": {"x": "y"}}
    assert fuzz.tried("queue scheduler", parts) == "ZeroDivisionError: seven"


def test_a_message_that_is_dropped_is_found(fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dropped(*_given: object) -> None:
        return None

    monkeypatch.setattr("sas.engine.rejections.Rejections.put_aside", dropped)
    problem = fuzz.tried("queue scheduler", {"queue": "scheduler", "body": b"{"})
    assert problem == "it must be kept, and it is late"


@pytest.mark.parametrize("body", [b'{"reason":' + b"[" * 100_000, b'{"reason":"\xff"}'])
def test_a_rejected_message_that_nests_deep_or_is_not_text_is_kept_when_it_expires(
    fuzz: Fuzz, body: bytes
) -> None:
    parts = {
        "queue": "dead-letters",
        "body": body,
        "properties": {"sas_dead_letter_source": "orders-rejected"},
    }
    assert fuzz.tried("queue dead-letters", parts) is None


def test_a_request_with_more_time_than_any_step_may_have_is_put_aside(fuzz: Fuzz) -> None:
    body = (
        b'{"kind":"request","format":1,"id":"O-failed/2/1","order_id":"O-failed","workflow":"order-held"'
        b',"step":1,"step_name":"pay","direction":"do","epoch":1,"time_allowed":1e300'
        b',"complete_by":"2026-01-01T00:10:00Z","idempotency_key":"O-failed/pay","order":{}}'
    )
    parts = {"queue": "agent-payment", "body": body}
    assert fuzz.tried("queue agent-payment", parts) is None


@pytest.mark.parametrize("body", [b'{"kind":' + b"[" * 100_000, b'{"kind":"\xff"}', b"{"])
def test_a_message_that_cannot_be_read_belongs_to_no_order(body: bytes) -> None:
    assert owner_of(body) is None
