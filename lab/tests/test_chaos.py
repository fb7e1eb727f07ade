"""The chaos run: what it draws, which ends are wrong, what it does to processes, a small run."""

from __future__ import annotations

import asyncio
import random
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from lab.chaos import soak
from lab.chaos.faults import DECK, Kind, draw
from lab.chaos.proxy import StoreProxy, Weather
from lab.chaos.reconciliation import what_is_wrong
from lab.chaos.soak import Sample, Samples
from lab.chaos.system import INSIDE, PROJECT
from samples.demo.tally import Tally

DONE = {"reserve-stock": 1, "take-payment": 1, "ship": 1}
GONE = dict.fromkeys(DONE, 0)


def test_a_seed_draws_the_same_faults_again_and_every_kind_comes() -> None:
    first, again, other = (draw(100, random.Random(seed), ["a", "b"]) for seed in (7, 7, 8))
    assert first == again != other
    assert {fault.kind for fault in first[: sum(DECK.values())]} == set(Kind)


@pytest.mark.parametrize(
    ("workflow", "notified", "in_force", "refused", "titles"),
    [
        ("order", "completed", DONE, [], []),
        ("order", "undone", GONE, ["ship"], []),
        ("order-with-care", "failed", DONE | {"ship": 0}, ["ship"], []),
        ("order", None, DONE, [], ["lost"]),
        ("order", "undone", GONE, [], ["failed without a refusal"]),
        ("order-with-care", "failed", GONE, [], ["failed without a refusal"]),
        ("order", "completed", DONE, ["ship"], ["wrong end"]),
        ("order", "completed", DONE | {"ship": 0}, [], ["effects wrong"]),
        ("order", "completed", DONE | {"ship": 2}, [], ["effects wrong"]),
        (
            "order",
            "undone",
            GONE | {"take-payment": 1},
            ["ship"],
            ["effects of undone orders in force"],
        ),
    ],
)
def test_the_reconciliation_finds_an_end_that_the_services_did_not_cause(
    workflow: str,
    notified: str | None,
    in_force: Mapping[str, int],
    refused: Sequence[str],
    titles: Sequence[str],
) -> None:
    found_titles = [title for title, _ in what_is_wrong(workflow, notified, in_force, refused)]
    assert found_titles == titles


def test_a_worker_is_flat_only_if_nothing_rises_after_the_first_third() -> None:
    def of(*memory_mib: float) -> Samples:
        at_rest = [
            Sample(ended=0, memory_mib=99.0, files=30, sockets=20, in_use_mib=mib)
            for mib in memory_mib
        ]
        return Samples(pid=1, memory=Path(), tally=Tally(orders=0), at_rest=at_rest)

    assert of(50, 60, 80, 82, 84, 85).flat
    assert of(60, 77, 121, 97, 82, 84, 71, 113, 91, 88).flat, "a burst is not a trend"
    assert not of(50, 60, 80, 82, 90, 95).flat
    assert not of(50, 50).flat, "two samples show no trend"


def test_a_worker_that_keeps_memory_or_sockets_for_each_order_is_not_flat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "REST_S", 0.0)
    memory = tmp_path / "memory"
    code = (
        "import socket, sys\nkept = []\n"
        "for _ in sys.stdin:\n"
        "    kept.append((b'x' * (4 << 20), socket.socket()))\n"
        "    print('done', flush=True)\n"
    )
    argv, pipe = [sys.executable, "-c", code], subprocess.PIPE
    env = {"PYTHONPATH": str(INSIDE), "CHAOS_MEMORY": str(memory)}
    with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, text=True) as worker:
        assert worker.stdin
        assert worker.stdout
        samples = Samples(pid=worker.pid, memory=memory, tally=Tally(orders=0))
        for number in range(9):
            worker.stdin.write("order\n")
            worker.stdin.flush()
            assert worker.stdout.readline() == "done\n"
            samples.tally.ended[f"O-{number}"] = "completed"
            asyncio.run(samples.rest())
        worker.stdin.close()
    assert not samples.flat
    assert sum(line.endswith("GROWS") for line in samples.table()) == 3


def test_a_process_has_the_wall_clock_of_its_file(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("d", 3600.0))
    code = (
        "import time, sys, struct\n"
        "from datetime import UTC, datetime\n"
        "seen = [time.time(), time.time_ns() / 1e9, datetime.now(UTC).timestamp()]\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "file.write(struct.pack('d', -3600.0)); file.flush()\n"
        "print(*seen, datetime.now(UTC).timestamp(), type(datetime.now()) is datetime)\n"
    )
    env = {"PYTHONPATH": f"{INSIDE}:{PROJECT}", "CHAOS_CLOCK": str(clock)}
    argv = [sys.executable, "-c", code, str(clock)]
    shown = subprocess.run(argv, env=env, capture_output=True, check=True, text=True)
    *times, same = shown.stdout.split()
    real = datetime.now(UTC).timestamp()
    assert [round((float(text) - real) / 3600) for text in times] == [1, 1, 1, -1]
    assert same == "True"


async def test_the_proxy_before_the_table_refuses_is_busy_loses_answers_and_forwards_again() -> (
    None
):
    bodies: list[bytes] = []

    async def handle(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        return web.Response(text="done")

    app = web.Application()
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with StoreProxy(runner.addresses[0][1]) as proxy, aiohttp.ClientSession() as client:

        async def status(weather: Weather) -> object:
            await proxy.change(weather)
            request = client.post(f"http://127.0.0.1:{proxy.port}/", data=b"x" * 200_000)
            try:
                async with asyncio.timeout(30), request as answer:
                    return answer.status
            except aiohttp.ClientError:
                return None

        assert await status(Weather.REFUSED) is None
        assert await status(Weather.BUSY) == 503
        assert not bodies
        assert await status(Weather.ANSWERS_LOST) is None
        assert await status(Weather.FINE) == 200
        assert [len(body) for body in bodies] == [200_000] * 2
    await runner.cleanup()


@pytest.mark.long
def test_the_ledgers_balance_after_a_small_chaos_run(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "lab.chaos", "--orders", "30", "--faults", "4"]
    argv += ["--out", str(tmp_path)]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    assert "30 orders, 4 faults" in done.stdout
    assert done.stdout.endswith("\nBALANCED\n")
