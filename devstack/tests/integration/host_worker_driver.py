"""Indexes an app under Microsoft's worker core and invokes its cases; run as a program.

    python -m devstack.tests.integration.host_worker_driver APP_DIR

The cases are in `APP_DIR/cases.json`. What came of them, and what the functions saw, is printed as
JSON.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from devstack.tests.worker_core import invoke, start


async def _drive(app_dir: Path) -> dict[str, Any]:
    sys.path.insert(0, str(app_dir))
    core, index = await start(app_dir)
    cases = json.loads((app_dir / "cases.json").read_text())
    return {"indexed": list(index["indexed"]), "results": [await _seen(core, c) for c in cases]}


async def _seen(core: Any, case: dict[str, Any]) -> list[Any]:
    memory = sys.modules["function_app"].seen
    memory.clear()
    answer = await invoke(core, case)
    if answer["status"] != "Success":
        return ["failed", list(memory), bool(answer["error"])]
    return ["ok", list(memory), answer["outputs"], answer["returned"]]


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asyncio.run(_drive(Path(sys.argv[1])))) + "\n")
