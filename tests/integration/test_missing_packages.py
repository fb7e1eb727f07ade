"""What ``sas`` loads in a fresh interpreter, and what it says where a package is not installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LACKING = """
import importlib.abc, sys
class Lacks(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith({names!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacks())
"""
STARTED = """
import sys
from sas.cli.__main__ import start
sys.argv[1:] = {}
raise SystemExit(start())
"""
BEYOND_THE_CLIENT = (
    *("aiohttp", "azure.data", "azure.functions", "azure.identity", "azure.monitor"),
    *("cryptography", "jinja2", "opentelemetry.sdk", "opentelemetry.exporter", "rich", "typer"),
)


def run(code: str, *lacking: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter in which these packages are not installed."""
    code = (LACKING.format(names=lacking) if lacking else "") + code
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_an_import_of_sas_alone_loads_nothing_else() -> None:
    ran = run(
        "import sys; before = set(sys.modules); import sas; print(*sys.modules.keys()-before)"
    )
    added = {name.partition(".")[0] for name in ran.stdout.split()} - sys.stdlib_module_names
    assert added == {"sas"}, ran.stderr
    assert {name for name in ran.stdout.split() if name.startswith("sas.")} == {"sas.distribution"}


def test_the_client_needs_neither_functions_nor_telemetry_exporters() -> None:
    ran = run(
        "from sas import OrdersClient, NewOrder, Receipt; import sas.client", *BEYOND_THE_CLIENT
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (["show", "O-1"], "azure.data", "cli"),
        (["desk"], "jinja2", "desk"),
        (["sim"], "typer", "testing"),
    ],
)
def test_a_verb_that_lacks_a_package_says_which_extra_to_install(
    words: list[str], package: str, extra: str
) -> None:
    local = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;TableEndpoint=http://x/a;"
    bus = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k="
    preamble = f"import os; os.environ.update(AzureWebJobsStorage={local!r}, ServiceBus={bus!r})\n"
    ran = run(f"{preamble}{STARTED.format(words)}", package)
    assert ran.returncode == 2
    sentence = rf"sas: {package}[\w.]* is not installed: run pip install '\S+\[{extra}\]'\n"
    assert re.fullmatch(sentence, ran.stderr), ran.stderr


def test_the_verbs_of_developers_need_nothing_of_azure() -> None:
    words = ["sim", "--help"]
    ran = run(STARTED.format(words), "aiohttp", "azure.data", "azure.identity", "jinja2")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_function_app_without_its_extra_says_what_to_install() -> None:
    ran = run("from sas import function_app", "azure.functions")
    assert ran.stderr.endswith(
        "azure.functions is not installed: run pip install "
        "'scheduler-agent-supervisor[functions]'\n"
    )


def test_a_package_that_the_business_lacks_is_not_reported_as_an_extra() -> None:
    ran = run(
        "import sas.distribution as d\nprint(d.lacking(ModuleNotFoundError(name='dues'), 'cli'))"
    )
    assert (ran.stdout, ran.stderr) == ("\n", "")
