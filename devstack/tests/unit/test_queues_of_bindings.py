"""The queues of an app without a Config.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from devstack.functions.host import Host
from devstack.functions.settings import HostError

LOCAL = "Endpoint=sb://localhost;SharedAccessKeyName=R;SharedAccessKey=K"
APP = """
import azure.functions as func
app = func.FunctionApp()

@app.service_bus_queue_trigger("m", "C", "%IN%", is_sessions_enabled=True)
@app.service_bus_queue_output(arg_name="out", connection="C", queue_name="out")
def one(m: str, out: func.Out[str]) -> None: ...

@app.service_bus_queue_trigger(arg_name="m", connection="C", queue_name="Out/$DeadLetterQueue")
def two(m: str) -> None: ...

@app.timer_trigger(arg_name="t", schedule="0 * * * * *")
def three(t: func.TimerRequest) -> None: ...
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "function_app.py").write_text(APP)
    (tmp_path / "host.json").write_text('{"version": "2.0"}')
    return tmp_path


async def test_each_queue_of_a_trigger_or_an_output_is_there_once(app: Path) -> None:
    host = Host(app, settings={"C": LOCAL, "IN": "in"})
    await host.check()
    assert host.queues == {"in": True, "out": False}


async def test_a_setting_that_is_missing_is_named(app: Path) -> None:
    with pytest.raises(HostError, match="function one needs the setting 'IN'"):
        await Host(app, settings={"C": LOCAL}).check()
