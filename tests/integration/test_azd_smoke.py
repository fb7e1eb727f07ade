"""``sas azd smoke`` against the broker, Azurite and the functions; ``az`` is a stand-in."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from sas.cli import smoke as verb
from sas.cli.system import LiveSystem
from sas.domain.order import OrderState
from sas.operate.errors import NotPossibleError
from tests.functions_rig import ROOT, Rig, rig
from tests.indexed_functions import functions
from tests.infra.azd_kit import DEPLOYED
from tests.infra.stand_ins import Cloud


async def smoke(system: Rig, azure: Cloud) -> tuple[int | None, str, str]:
    env = (
        os.environ
        | system.settings
        | DEPLOYED
        | {"PATH": f"{azure.path}{os.pathsep}{os.environ['PATH']}"}
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sas.cli", "azd", "smoke"),
        cwd=ROOT,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


async def test_a_deployment_is_tried_with_an_order_that_calls_nothing(tmp_path: Path) -> None:
    azure = Cloud(tmp_path, functions=sorted(functions()))
    async with rig() as system, system.host():
        code, out, err = await smoke(system, azure)
        assert code == 0, out + err
        lines = out.splitlines()
        [order_id] = {line.split()[0] for line in lines if line.startswith("smoke-")}
        order = await system.store.load(order_id)
        assert order is not None
        assert (order.process_state, order.steps) == (OrderState.PROCESSED, ())
        assert lines[0] == f"Azure has all {len(functions())} functions"
        assert "submitted 1, completed 1" in out
        assert lines[-1] == "The deployment works."


async def test_a_deployment_that_does_not_work_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "PATIENCE_S", 1.0)
    monkeypatch.setattr(verb, "PAUSE_S", 0.1)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    async with rig() as system:
        for name, value in system.settings.items():
            monkeypatch.setenv(name, value)
        place = LiveSystem()
        for names, sentence in (
            (["submission"], "it lacks scheduler"),
            (["submission", "scheduler"], "order smoke-[0-9]+ did not come to its end: look at"),
        ):
            Cloud(tmp_path, functions=names)
            with pytest.raises(NotPossibleError, match=sentence):
                await verb._smoke(place, expected={"submission", "scheduler"}, env=DEPLOYED)
        await place.close()
