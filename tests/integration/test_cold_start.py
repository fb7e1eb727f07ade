"""What an import of ``function_app`` loads, in a fresh interpreter. A cold start waits for it."""

import os
import subprocess
import sys

import pytest

from tests.indexed_functions import ROOT, local_settings

SDK = {"azure.functions", "azure.servicebus.aio"}
OURS = {"function_app", "msgspec", "opentelemetry", "orders", "sas"}
"""Packages that the import may add to the SDK's. Of OpenTelemetry, the interfaces alone."""
NOT_YET = {
    "aiohttp",
    "azure.data.tables",
    "azure.identity",
    "azure.monitor",
    "cryptography",
    "opentelemetry.exporter",
    "opentelemetry.sdk",
    "samples",
}
NEVER = {"multiprocessing", "pydoc", "sqlite3", "unittest"}
"""Slow modules of the standard library."""
WITHOUT_THREAD = "import sas.bootstrap; sas.bootstrap.load_ahead = lambda: None\n"


def printed_by(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **local_settings()},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stdout


def words_of(code: str) -> list[str]:
    return printed_by(code).split()


def loaded_by(code: str) -> set[str]:
    return set(words_of(f"import sys\n{code}\nprint(*sys.modules)"))


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    return loaded_by(WITHOUT_THREAD + "import function_app")


def test_what_is_slow_to_import_is_not_loaded_before_it_is_used(loaded: set[str]) -> None:
    assert not loaded & (NOT_YET | NEVER)
    assert loaded >= SDK


def test_the_import_adds_few_packages_to_those_of_the_sdk(loaded: set[str]) -> None:
    by_sdk = loaded_by(f"import {', '.join(SDK)}")
    added = {name.partition(".")[0] for name in loaded - by_sdk}
    assert added - sys.stdlib_module_names == OURS


def test_what_the_first_message_needs_is_loaded_by_a_thread_after_the_import() -> None:
    wait = (
        "import function_app, threading\nfor t in threading.enumerate():\n    t.daemon and t.join()"
    )
    loaded = loaded_by(wait)
    assert {"aiohttp", "azure.data.tables.aio", "sas.adapters.tables.store"} <= loaded
    assert not loaded & (NOT_YET - {"aiohttp", "azure.data.tables"})
