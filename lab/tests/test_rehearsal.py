"""The rehearsal of a deployment: its evaluator of Bicep, and a small run of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.rehearsal.bicep import UnknownExpressionError, app_settings

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
