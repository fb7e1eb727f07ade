"""The comparison with peers: what it prints, and what becomes of a peer that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab.benchmarks.growth import Point
from lab.benchmarks.peers import __main__ as peers
from lab.benchmarks.peers import install, report
from lab.benchmarks.peers.measure import IN_FLIGHT, Recovery, Speed
from lab.benchmarks.peers.rigs import RIGS
from samples.demo.picture import Curve, picture


def visit(rate: float, p50_ms: float) -> list[Speed]:
    return [
        Speed(count, 10, rate * count, p50_ms, {"workers": 10.0, "servers": 2.0})
        for count in IN_FLIGHT
    ]


def test_the_table_has_medians_over_rounds_and_ratios_to_ours() -> None:
    rounds = {"ours": [visit(2, 100), visit(4, 300), visit(3, 200)], "restate": [visit(6, 50)]}
    lines = report.speed_table(rounds)
    assert lines[2] == (
        "| Restate 1.7.12 (native server) | 6.0 (2.00) | 60.0 (2.00) | 600.0 (2.00) | 50 (0.25) | "
        "10.0, 2.0 | 1 |"
    )
    assert lines[3].startswith("| **ours** | 3.0 (1.00) | 30.0 (1.00) | 300.0 (1.00) | 200 (1.00)")


def test_a_report_names_every_peer_that_was_left_out_and_why() -> None:
    found = report.whole({"ours": [visit(2, 100)]}, {}, {"celery": "no redis-server here"})
    assert f"**{RIGS['celery'].title} was left out**: no redis-server here" in found
    assert report.whole({"ours": []}, {}, {}).count("|") == 0


def test_a_recovery_shows_what_was_lost_torn_and_doubled() -> None:
    one = Recovery(40, left=20, due_s=2.0, seconds=7.25, lost=1, torn=["r-1", "r-2"], doubled=3)
    (line,) = report.recovery_table({"ours": one})[2:]
    assert line == "| ours | 40, 20 | 2.0 | 7.2 | 1 | 2 | 3 | 0 | 0 |"


def test_a_peer_that_cannot_be_installed_is_left_out_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    missing: dict[str, str] = {}
    assert not peers.installed(RIGS["restate"], missing)
    assert "could not be installed (from a virtual environment" in missing["restate"]
    assert "is left out" in capsys.readouterr().out
    assert peers.installed(RIGS["ours"], missing)  # the others still run


def test_a_picture_shows_each_curve_and_each_place() -> None:
    points = [Point(1_000, {"sweep": 1.0}), Point(10_000, {"sweep": 2.0})]
    curve = Curve("sweep", [point.values["sweep"] for point in points])
    drawn = picture("Growth", "ms", ["1,000", "10,000"], [curve])
    assert drawn.startswith("<svg ")
    assert drawn.count("<circle") == 2
    assert {">sweep<", ">1,000<", ">10,000<", ">Growth<"} <= {
        f">{part.split('<')[0]}<" for part in drawn.split(">")
    }
