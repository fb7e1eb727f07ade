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


async def test_a_deployment_is_tried_with_an_order_that_calls_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "PATIENCE_S", 1.0)
    monkeypatch.setattr(verb, "PAUSE_S", 0.1)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    names = sorted(functions())
    async with rig() as system:
        for name, value in system.settings.items():
            monkeypatch.setenv(name, value)
        place = LiveSystem()
        for deployed, sentence in (
            (names[1:], f"it lacks {names[0]}"),
            (names, "order smoke-[0-9]+ did not come to its end: look at"),
        ):
            azure = Cloud(tmp_path, functions=deployed)
            with pytest.raises(NotPossibleError, match=sentence):
                await verb._smoke(place, expected=set(names), env=DEPLOYED)
        await place.close()
        async with system.host():
            code, out, err = await smoke(system, azure)
        assert code == 0, out + err
        lines = out.splitlines()
        [order_id] = {line.split()[0] for line in lines if line.startswith("smoke-")}
        order = await system.store.load(order_id)
        assert order is not None
        assert (order.process_state, order.steps) == (OrderState.PROCESSED, ())
        assert lines[0] == f"Azure has all {len(names)} functions"
        assert lines[-1] == "The deployment works."
