"""The benchmarks run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lab.benchmarks import broker
from lab.benchmarks.peers import __main__ as peers


def test_the_benchmark_of_the_broker_prints_a_ratio_for_each_kind_of_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.measure(tmp_path, 1)
    assert capsys.readouterr().out.count("broker over client") == 4


@pytest.mark.long
def test_the_same_saga_runs_and_recovers_on_this_project(
    capsys: pytest.CaptureFixture[str],
) -> None:
    peers.show(*asyncio.run(peers.collect(["ours"], {1: 1.0, 10: 1.0}, rounds=1)))
    recovered = capsys.readouterr().out.strip().splitlines()[-1]
    assert recovered.startswith("| ours, queued agents |")
    assert recovered.endswith("| 0 | 0 | 0 |")
