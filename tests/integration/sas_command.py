"""The operator's command in a process of its own, beside a running system."""

from __future__ import annotations

import asyncio
import os

from tests.forked import Said, sas_said
from tests.functions_rig import Rig


async def sas(system: Rig, *arguments: str, **environ: str) -> Said:
    """Run the command in a process of its own, without the app's settings."""
    settings = {name: system.settings[name] for name in ("ServiceBus", "SAS_TABLE")}
    settings["SAS_TABLES"] = system.azurite.connection_string
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SAS_")}
    env = inherited | settings | {"SAS_OPERATOR": "ann"} | environ
    output = await asyncio.to_thread(sas_said, arguments, env)
    assert "Traceback" not in output.err, output.err
    return output


class Gate:
    """``asyncio`` for the remote services: slow calls wait until the test lets them go on."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def sleep(self, _seconds: float) -> None:
        await self.go.wait()
