"""The benchmarks run; a peer that cannot be installed is left out."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from lab.benchmarks import broker
from lab.benchmarks.peers import __main__ as peers
from lab.benchmarks.peers import install


def test_the_benchmark_of_the_broker_prints_a_ratio_for_each_kind_of_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.measure(tmp_path, 1)
    assert capsys.readouterr().out.count("broker over client") == 4


def test_a_peer_that_cannot_be_installed_is_left_out_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    asyncio.run(peers.collect(["restate"], {1: 0.1}, rounds=1))
    assert "is left out: NotInstalledError: from a virtual env" in capsys.readouterr().out


def test_a_peer_is_compared_with_ours_only_within_the_rounds_that_visited_both() -> None:
    rates = [("ours", 0, 20), ("dbos", 0, 50), ("dbos", 1, 90), ("ours", 2, 10), ("dbos", 2, 40)]
    visits = [
        peers.Visit(peer=peer, round=number, speeds={"1": rate}, cpu_ms=())
        for peer, number, rate in rates
    ]
    assert peers.ratios(visits, "dbos", "ours") == {"1": [2.5, 4.0]}
    assert peers.ratios(visits, "dbos", "ours-inline") == {}


@pytest.mark.long
def test_the_same_saga_runs_and_recovers_on_this_project(
    capsys: pytest.CaptureFixture[str],
) -> None:
    peers.show(*asyncio.run(peers.collect(["ours"], {1: 1.0, 10: 1.0}, rounds=1)))
    recovered = capsys.readouterr().out.strip().splitlines()[-1]
    assert recovered.startswith("| ours, queued agents |")
    assert recovered.endswith("| 0 | 0 | 0 |")
