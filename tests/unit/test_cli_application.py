"""The application that a verb finds: by ``--app``, or by pyproject.toml."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest

from sas.cli import application
from sas.cli.main import main
from sas.operate.errors import UsageError
from tests.unit.cli_kit import NAMES_APP, SAGAS


def names(argument: str | None = None) -> list[str]:
    return [workflow.name for workflow in application.workflows_of(argument)]


def test_it_is_found_from_a_folder_below(sagas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = sagas.parent / "docs" / "notes"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert names() == ["trip"]
    assert application.named(None).folder == sagas.parent


def test_the_search_ends_at_the_root_of_the_project(
    sagas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sagas.parent / "other"
    other.mkdir()
    (other / "pyproject.toml").write_text('[project]\nname = "other"\n')
    monkeypatch.chdir(other)
    with pytest.raises(UsageError, match="no application is named: write app = "):
        names()


@pytest.fixture
def of_another(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """The files and folders of another user."""
    paths: set[Path] = set()
    status_of = Path.stat

    def as_shown(path: Path, **options: bool) -> os.stat_result:
        status = status_of(path, **options)
        return os.stat_result((*status[:4], status.st_uid + (path in paths), *status[5:]))

    monkeypatch.setattr(Path, "stat", as_shown)
    return paths


def test_a_folder_that_is_not_the_operators_runs_no_code(
    sagas: Path, monkeypatch: pytest.MonkeyPatch, of_another: set[Path]
) -> None:
    """In ``/tmp``, anybody may write a pyproject.toml. Another user may lend a folder."""
    below = sagas.parent / "mine"
    below.mkdir()
    lendings = ((0o1777, False), (0o755, True), (0o777, True))
    for place, (mode, is_lent) in product((sagas.parent, below), lendings):
        of_another.clear()
        if is_lent:
            of_another.add(sagas.parent)
        monkeypatch.chdir(place)
        sagas.parent.chmod(mode)
        with pytest.raises(UsageError, match="of another user, or of everybody"):
            names()
        with pytest.raises(UsageError, match="of another user, or of everybody"):
            application.in_folder(sagas.parent)


def test_a_project_file_of_another_user_in_a_folder_of_the_operator_runs_no_code(
    sagas: Path, of_another: set[Path]
) -> None:
    of_another.add(sagas.parent / "pyproject.toml")
    with pytest.raises(UsageError, match="is of another user"):
        names()


def test_the_folder_of_the_application_comes_last_once_it_is_imported(sagas: Path) -> None:
    (sagas.parent / "colorsys.py").write_text("raise RuntimeError('not trusted')\n")
    names()
    assert sys.path[-1] == str(sagas.parent)
    sys.modules.pop("colorsys", None)
    assert import_module("colorsys").__file__ != str(sagas.parent / "colorsys.py")


def test_a_module_means_its_sagas_and_one_of_them_can_be_named(sagas: Path) -> None:
    sagas.write_text(SAGAS + 'other = Saga("other", dict)\nother.step()(book)\n')
    assert names(sagas.stem) == ["trip", "other"]  # --app wins over the project
    assert names(f"{sagas.stem}:other") == ["other"]


def test_an_application_that_is_none_or_fails_as_it_is_loaded_is_one_sentence(sagas: Path) -> None:
    for name, sentence in {
        "./orders": "--app ./orders is no module",
        "no_such_module:x": "No module named 'no_such_module'",
        "json:x": "has no attribute 'x'",
        "json:__name__": "is str: give a module or a saga",
    }.items():
        with pytest.raises(UsageError, match=sentence):
            names(name)
    for source, sentence in {
        "raise KeyError('PATH_OF_US')": f"app '{sagas.stem}' of .* cannot be loaded: KeyError: 'PA",
        "raise ValueError('give a version')": "cannot be loaded: give a version",
        "import sas": f"{sagas.stem} has no saga: write one",
    }.items():
        sagas.write_text(source)
        with pytest.raises(UsageError, match=sentence):
            names()


def test_a_wrong_table_is_told(sagas: Path) -> None:
    number = r"\[tool.sas\] cannot be read: Expected `str \| null`, got `int` - at `\$.app`"
    for text, sentence in {
        "[tool.sas]\napp = 3\n": number,
        '[tool.sas]\napplication = "x"\n': "unknown field `application`",
        "[tool.sas\n": "cannot be read",
    }.items():
        (sagas.parent / "pyproject.toml").write_text(text)
        with pytest.raises(UsageError, match=sentence):
            names()


def test_a_verb_that_can_do_without_the_application_goes_on(
    sagas: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert application.agents_if_any(None) == {"hotel"}
    (sagas.parent / "pyproject.toml").write_text(NAMES_APP.format("no_such_module"))
    assert application.agents_if_any(None) == set()
    assert "No module named 'no_such_module'. Going on without it" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--app no_such_module cannot be loaded"):
        application.agents_if_any("no_such_module")


def test_a_simulation_needs_no_argument(
    sagas: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert main(["sim", "--seeds", "1", "--jobs", "1"]) == 0
    assert "Nothing wrong with your workflow in 1 stories." in capsys.readouterr().out
