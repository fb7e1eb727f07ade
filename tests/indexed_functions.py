"""function_app.py, indexed once, apart from the module that an embedded host imports."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]


def local_settings() -> Mapping[str, str]:
    """Return the settings of this machine. ``orders`` may need others: give them as variables."""
    settings = json.loads((ROOT / "local.settings.json").read_text(encoding="utf-8"))
    values: dict[str, str] = settings["Values"]
    return values


@functools.cache
def module() -> ModuleType:
    """Return a copy of the module of its own."""
    spec = importlib.util.spec_from_file_location("function_app_indexed", ROOT / "function_app.py")
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    with mock.patch.dict(os.environ, {**local_settings(), **os.environ}):
        spec.loader.exec_module(copy)
    return copy


@functools.cache
def functions() -> Mapping[str, Any]:
    """Return the functions by name. The SDK lets an app be indexed once only."""
    return {function.get_function_name(): function for function in module().app.get_functions()}


@functools.cache
def bindings() -> Mapping[str, Mapping[str, Any]]:
    """Return the trigger of each function as the host sees it. The only other binding is the answer
    of an HTTP function.
    """
    definitions = {
        name: json.loads(function.get_function_json()) for name, function in functions().items()
    }
    assert {definition["scriptFile"] for definition in definitions.values()} == {"function_app.py"}
    triggers = {}
    for name, definition in definitions.items():
        trigger, *others = definition["bindings"]
        answers = ["http"] if trigger["type"] == "httpTrigger" else []
        assert [other["type"] for other in others] == answers
        triggers[name] = trigger
    return triggers
