"""The chaos run's own rules: which faults it draws, and which ends are wrong."""

from __future__ import annotations

import asyncio
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from samples.chaos import report, soak
from samples.chaos.faults import DECK, Kind, draw
from samples.chaos.reconciliation import what_is_wrong
from samples.chaos.screen import Screen
from samples.chaos.soak import Sample, Samples
from samples.chaos.system import INSIDE, PROJECT
from samples.demo.tally import Tally

DONE = {"reserve-stock": 1, "take-payment": 1, "ship": 1}
GONE = dict.fromkeys(DONE, 0)


def test_a_seed_draws_the_same_faults_again_and_every_kind_comes() -> None:
    first, again, other = (
        draw(100, random.Random(seed), ["a", "b"])  # noqa: S311  no secret
        for seed in (7, 7, 8)
    )
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
            *("order", "undone", GONE | {"take-payment": 1}, ["ship"]),
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
    found = [title for title, _ in what_is_wrong(workflow, notified, in_force, refused)]
    assert found == titles


def test_the_report_lists_only_transitions_other_than_the_happy_path() -> None:
    found = Counter({"submitted": 1, "claimed": 1, "step processed": 3, "step reset": 2})
    assert report._unusual(found) == [("step reset", 2)]


def test_a_worker_is_flat_only_if_nothing_rises_after_the_first_third() -> None:
    def of(*memory_mib: float) -> Samples:
        at_rest = [Sample(0, 99.0, 30, 20, in_use_mib=one) for one in memory_mib]
        return Samples(1, Path(), Tally(0), Screen(Console(), 0, 0), at_rest=at_rest)

    assert of(50, 60, 80, 82, 84, 85).flat
    assert of(60, 77, 121, 97, 82, 84, 71, 113, 91, 88).flat, "a burst is not a trend"
    assert not of(50, 60, 80, 82, 90, 95).flat
    assert not of(50, 50).flat, "two samples show no trend"


@pytest.mark.parametrize("kept", ["memory", "objects", "sockets", "nothing"])
def test_a_worker_that_keeps_something_for_each_order_is_not_flat(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "REST_S", 0.0)
    told = tmp_path / "memory"
    code = (
        "import socket, sys\nkept = []\n"
        "for what in sys.stdin:\n"
        "    if what == 'memory\\n': kept.append(b'x' * (4 << 20))\n"
        "    if what == 'objects\\n': kept.append([float(n) for n in range(50_000)])\n"
        "    if what == 'sockets\\n': kept.append(socket.socket())\n"
        "    print('done', flush=True)\n"
    )
    argv, pipe = [sys.executable, "-c", code], subprocess.PIPE
    env = {"PYTHONPATH": str(INSIDE), "CHAOS_MEMORY": str(told)}
    with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, text=True) as worker:
        assert worker.stdin
        assert worker.stdout
        samples = Samples(worker.pid, told, Tally(0), Screen(Console(), 0, 0))
        for number in range(15):
            worker.stdin.write(f"{kept}\n")
            worker.stdin.flush()
            assert worker.stdout.readline() == "done\n"
            samples.tally.ended[f"O-{number}"] = "completed"
            asyncio.run(samples.rest())
        worker.stdin.close()
    assert samples.flat == (kept == "nothing")
    assert [line.endswith("GROWS") for line in samples.table()[-5:-2]] == [
        kept in {"memory", "objects"}, kept == "sockets", kept == "sockets",
    ]  # fmt: skip


def test_the_table_shows_which_leak_a_run_is_long_enough_to_find() -> None:
    tally = Tally(0, ended=dict.fromkeys(map(str, range(3000)), "completed"))
    at_rest = [Sample(0, 200.0, 30, 20, in_use_mib=100.0)] * 6
    table = Samples(1, Path(), tally, Screen(Console(), 0, 0), at_rest=at_rest).table()
    assert table[-1] == "a leak of 5.1 KiB an order or more would show"


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
    shown = subprocess.run(
        [sys.executable, "-c", code, str(clock)],
        env=env,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    real = datetime.now(UTC).timestamp()
    shifts = [round((float(one) - real) / 3600) for one in shown[:4]]
    assert (shifts, shown[4]) == ([1, 1, 1, -1], "True")
