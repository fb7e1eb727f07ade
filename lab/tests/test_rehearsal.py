"""The rehearsal of a deployment: its evaluator of Bicep, and a small run of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from devstack.servicebus import Broker
from devstack.servicebus.config import parse_config
from lab.rehearsal import run
from lab.rehearsal.bicep import UnknownExpressionError, app_settings
from sas.codec.external import AlertMessage

ROOT = Path(__file__).parents[2]
MAIN = """
param place string = 'here'
module app 'modules/function-app.bicep' = {
  name: 'app'
  params: {
    name: 'func-${place}'
    endpoint: storage.outputs.endpoint
    business: business
  }
}
"""
APP = """
param name string
param endpoint string
param business object
var list = loadJsonContent('../queues.json')
var pairs = [for item in items(business): {
  name: item.key // a comment
  value: item.value
}]
var address = empty(list.own) ? 'https://${name}/it\\'s' : unknown(list.own)
var settings = [
  { name: 'ADDRESS', value: address }
  { name: 'DAYS', value: string(30) }
]
resource app 'Microsoft.Web/sites@2024-11-01' = {
  properties: {
    appSettings: concat(settings, list.settings, pairs)
  }
}
"""


@pytest.fixture
def infra(tmp_path: Path) -> Path:
    (tmp_path / "modules").mkdir()
    (tmp_path / "main.bicep").write_text(MAIN)
    (tmp_path / "modules" / "function-app.bicep").write_text(APP)
    (tmp_path / "queues.json").write_text('{"own": "", "settings": [{"name": "Q", "value": "q"}]}')
    (tmp_path / "main.parameters.json").write_text(
        '{"parameters": {"business": {"value": {"B": "${B_URL}", "A": "${A_URL=a}"}}}}'
    )
    return tmp_path


def test_the_app_settings_are_those_that_bicep_computes(infra: Path) -> None:
    settings = app_settings(infra, {"B_URL": "b"}, {"endpoint": "https://e"})
    expected = {"ADDRESS": "https://func-here/it's", "DAYS": "30", "Q": "q", "A": "a", "B": "b"}
    assert settings == expected
    assert list(settings) == list(expected)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("toUpper('x')", "toUpper()"),
        ("!true", "!true"),
        ("endpoint", "storage has no value here"),
    ],
)
def test_an_expression_that_the_evaluator_does_not_know_is_refused(
    infra: Path, expression: str, why: str
) -> None:
    path = infra / "modules" / "function-app.bicep"
    path.write_text(path.read_text().replace("string(30)", expression))
    with pytest.raises(UnknownExpressionError) as refusal:
        app_settings(infra, {}, {})
    assert why in str(refusal.value)


async def test_orders_that_do_not_end_are_explained_by_alerts_and_dead_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "PATIENCE_S", 0.0)
    others: dict[str, Any] = dict.fromkeys(
        ("place", "azurite", "remote", "identity", "ingestion", "http_port")
    )
    config = (ROOT / "infra" / "emulator" / "Config.json").read_text()
    at = "2026-01-01T00:00:00.000Z"
    alert_bodies = [
        msgspec.json.encode(AlertMessage(kind="failed", at=at, text="payment fails", id=name))
        for name in ("1", "2")
    ]
    async with (
        Broker(parse_config(config)) as broker,
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("operator-alerts") as alerts,
        client.get_queue_sender("agent-payment") as requests,
        client.get_queue_receiver("agent-payment") as agent,
    ):
        await alerts.send_messages([ServiceBusMessage(body) for body in alert_bodies])
        await requests.send_messages(ServiceBusMessage(b"{}"))
        [request] = await agent.receive_messages(1)
        await agent.dead_letter_message(request, "Bug", "KeyError: 'amount'")
        with pytest.raises(run.RehearsalError) as failure:
            await run._until(run.Cloud(broker=broker, **others), lambda: False, "no order ends")
    lines = str(failure.value).splitlines()
    assert lines[0].startswith("no order ends; in the queues: ['operator-alerts: ")
    assert lines[1:] == [
        "    2 x alert: payment fails",
        "    1 x dead letter: its queue gave it up: “Bug: KeyError: 'amount'”",
    ]


def test_ctrl_c_ends_a_rehearsal_quietly(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rehearsal = subprocess.Popen(
        [sys.executable, "-m", "lab.rehearsal", "--out", str(out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C reaches all processes of a terminal
    )
    end = time.monotonic() + 60
    while not any(out.glob("*.pem")) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(2)  # the first step builds the zip
    os.killpg(rehearsal.pid, signal.SIGINT)
    printed, _ = rehearsal.communicate(timeout=60)
    assert (rehearsal.returncode, printed) == (130, "stopped; no process is left\n")


@pytest.mark.long
def test_a_deployment_a_recreate_and_a_second_version_lose_nothing(tmp_path: Path) -> None:
    pytest.importorskip("azure_functions_runtime")
    done = subprocess.run(
        [sys.executable, "-m", "lab.rehearsal", "--orders", "12", "--out", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "doubled 0" in done.stdout
    assert done.stderr == ""
