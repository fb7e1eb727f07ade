"""``sas submit`` against the real functions. Its notifications keep to the contract."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from itertools import islice
from pathlib import Path

from tests.functions_rig import SHOP, Rig, rig
from tests.unit.contract_files import closed, errors

ROOT = Path(__file__).parents[2]
NORTHWIND = ROOT / "samples" / "northwind-orders.jsonl"


async def submit(system: Rig, stdin: str) -> tuple[int | None, list[str], str]:
    env = dict(os.environ) | {
        "ServiceBus": system.broker.connection_string,
        "SAS_REPLY_QUEUE": SHOP,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sas.cli",
        "submit", "-", "--workflow", "order", "--follow", "--json", "--patience", "60",
        cwd=ROOT, env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 120)
    return process.returncode, out.decode().splitlines(), err.decode()


async def test_orders_are_followed_through_the_real_functions_and_keep_to_the_contract() -> None:
    with NORTHWIND.open("r", encoding="utf-8") as lines:
        good = list(islice(lines, 10))
    bad = json.dumps({"order_id": "NW-none", "lines": []}) + "\n"
    async with rig() as system, system.host():
        code, out, err = await submit(system, "".join(good) + bad + good[0])
        again, out_again, _ = await submit(system, "".join(good))
    events = [json.loads(line) for line in out[:-1]]
    assert code == 1, err
    assert json.loads(out[-1])["summary"] == {
        "submitted": 12, "completed": 10, "failed": 0, "undone": 0, "rejected": 1, "unfinished": 0,
        "repeated": 1,
    }  # fmt: skip
    contract = closed("notification.schema.json")
    assert [errors(contract, event) for event in events] == [[]] * len(events)
    kinds = [event["type"].split(".")[2] for event in events]
    assert (kinds.count("completed"), kinds.count("step-completed")) == (10, 0)

    assert again == 0
    assert json.loads(out_again[-1])["summary"]["completed"] == 10
    for event in map(json.loads, out_again[:-1]):
        assert (event["data"]["duplicate"], event["data"]["state"]) == (True, "Processed")
