"""What ``sas`` offers to a module of an adopter: few names, typed, documented, loaded late."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sas

ROOT = Path(__file__).resolve().parents[2]
LACKING = """
import importlib.abc, sys
class Lacks(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith({names!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacks())
"""
BEYOND_THE_CLIENT = (
    *("aiohttp", "azure.data", "azure.functions", "azure.identity", "azure.monitor"),
    *("cryptography", "jinja2", "opentelemetry.sdk", "opentelemetry.exporter"),
)


def run(code: str, *lacking: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter in which these packages are not installed."""
    code = (LACKING.format(names=lacking) if lacking else "") + code
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", sas.__all__)
def test_a_public_name_exists_and_has_a_docstring(name: str) -> None:
    found = getattr(sas, name)
    assert inspect.getdoc(found)
    assert f"``{name}``" in str(sas.__doc__)


def test_the_types_that_a_checker_sees_are_those_that_python_loads() -> None:
    tree = ast.parse((ROOT / "sas" / "__init__.py").read_text(encoding="utf-8"))
    seen = next(node for node in tree.body if isinstance(node, ast.If))
    named: dict[str, str] = {}
    for node in seen.body:
        assert isinstance(node, ast.ImportFrom)
        named.update((one.name, str(node.module)) for one in node.names)
    assert sorted(named) == sas.__all__
    assert {name: sas._WHERE.get(name, sas._PORTS) for name in sas.__all__} == named


def test_a_name_that_is_not_there_is_refused_with_where_to_look() -> None:
    with pytest.raises(AttributeError, match=r"'sas' has no attribute 'Workflw': see help\(sas\)"):
        _ = sas.Workflw  # type: ignore[attr-defined]


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
    ("words", "lacks", "extra"),
    [
        (["list"], "aiohttp", "cli"),
        (["show", "O-1"], "azure.data", "cli"),
        (["desk"], "jinja2", "desk"),
    ],
)
def test_a_verb_that_lacks_a_package_says_which_extra_to_install(
    words: list[str], lacks: str, extra: str
) -> None:
    local = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;TableEndpoint=http://x/a;"
    bus = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k="
    given = f"import os; os.environ.update(AzureWebJobsStorage={local!r}, ServiceBus={bus!r})\n"
    code = f"{given}from sas.cli.main import main; raise SystemExit(main({words!r}))"
    ran = run(code, lacks)
    assert ran.returncode == 2
    wanted = rf"sas: {lacks}[\w.]* is not installed: run pip install '\S+\[{extra}\]'\n"
    assert re.fullmatch(wanted, ran.stderr), ran.stderr


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
