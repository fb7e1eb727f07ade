"""A Config.json made of an app's bindings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from devstack.functions.indexing import find, imported
from devstack.functions.queues import config_of, main
from devstack.functions.settings import Settings
from devstack.servicebus.config import parse_config

APP = """
import azure.functions as func
app = func.FunctionApp()

@app.service_bus_queue_trigger("m", "C", "%IN%", is_sessions_enabled=True)
@app.service_bus_queue_output(arg_name="out", connection="C", queue_name="out")
@app.service_bus_topic_output(arg_name="news", connection="C", topic_name="news")
def one(m: str, out: func.Out[str], news: func.Out[str]) -> None: ...

@app.service_bus_queue_trigger(arg_name="m", connection="C", queue_name="Out/$DeadLetterQueue")
def two(m: str) -> None: ...

@app.timer_trigger(arg_name="t", schedule="0 * * * * *")
def three(t: func.TimerRequest) -> None: ...
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "function_app.py").write_text(APP)
    return tmp_path


def test_each_queue_of_a_trigger_or_an_output_is_there_once(app: Path) -> None:
    settings = Settings({"IN": "in"})
    with imported(app) as module:
        made = config_of(find(module), settings)
    queues = parse_config(json.dumps(made)).queues
    assert {name: one.requires_session for name, one in queues.items()} == {
        "in": True,
        "out": False,
    }


def test_a_setting_that_is_missing_is_named(
    app: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IN", raising=False)
    assert main(app) == 1
    assert "function one" in (told := capsys.readouterr().err)
    assert "IN" in told
