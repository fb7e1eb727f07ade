"""The two halves of ``make test`` are the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import run_tests

TESTS = Path(__file__).parents[1]


def test_every_layer_is_in_one_half_and_in_no_other() -> None:
    layers = sorted(
        f"tests/{folder.name}"
        for folder in TESTS.iterdir()
        if any(path.name.startswith("test_") for path in folder.glob("*.py"))
    )
    assert sorted(layer for half in run_tests.HALVES.values() for layer in half) == layers


@pytest.mark.parametrize(("wrong", "code"), [("", 0), ("a", 1), ("b", 1)])
def test_a_failure_in_either_half_is_the_code_of_all_and_both_are_told(
    wrong: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    halves = {}
    for name in ("a", "b"):
        own = tmp_path / f"test_{name}.py"
        own.write_text(f"def test_{name}():\n    assert {name != wrong}\n")
        halves[name] = (str(own),)
    monkeypatch.setattr(run_tests, "HALVES", halves)
    assert run_tests.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]) == code
    printed = capsys.readouterr().out
    for name in ("a", "b"):
        passed = name != wrong
        assert f"[{name}] 1 {'passed' if passed else 'failed'}" in printed
        assert f"test_{name}.py: {'passed' if passed else 'exit code 1'}" in printed
