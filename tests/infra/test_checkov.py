"""Checkov passes, but for a written list; and it really parsed every file."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from tests.infra.kit import INFRA, broken_copy, need_tool
from tools.infra_checkov import Report, executable, run

need_tool(executable() is not None, "checkov", "python -m tools.infra_checkov --install")


def report(infra: Path) -> Report:
    python = executable()
    assert python is not None
    return run(python, infra)


@functools.cache
def ours() -> Report:
    return report(INFRA)


def skipped() -> set[tuple[str, str, str]]:
    listed = json.loads((INFRA / "checkov-skips.json").read_text())["skips"]
    assert all(len(each["why"]) > 20 for each in listed)
    return {(each["check"], each["file"], each["resource"]) for each in listed}


def test_what_fails_is_on_the_list_and_what_is_on_the_list_fails() -> None:
    assert ours().failed == skipped()


def test_every_file_was_parsed() -> None:
    assert ours().refused == ()
    assert ours().passed >= 20


def test_a_weakness_made_on_purpose_is_found(tmp_path: Path) -> None:
    weak = broken_copy(tmp_path, "modules/storage-account.bicep", "'TLS1_2'", "'TLS1_0'")
    assert report(weak).failed - skipped()


def test_a_file_that_it_cannot_parse_is_noticed(tmp_path: Path) -> None:
    """Left alone it would report nothing about such a file, and pass."""
    deaf = broken_copy(
        tmp_path,
        "modules/storage-account.bicep",
        "param containers array",
        "param containers string[]",
    )
    assert [name for name in report(deaf).refused if name.endswith("storage-account.bicep")]
