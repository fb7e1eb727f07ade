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
    asyncio.run(peers.compare(["restate"], {1: 0.1}))
    assert "is left out: NotInstalledError: from a virtual env" in capsys.readouterr().out


@pytest.mark.long
def test_the_same_saga_runs_and_recovers_on_this_project(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asyncio.run(peers.compare(["ours"], {1: 1.0, 10: 1.0}))
    recovered = capsys.readouterr().out.strip().splitlines()[-1]
    assert recovered.startswith("| ours |")
    assert recovered.endswith("| 0 | 0 | 0 |")
