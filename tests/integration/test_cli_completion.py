"""``sas completion``: bash itself completes what the parser knows."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sas.cli.completion import words_of
from sas.cli.main import build_parser, main

BASH = shutil.which("bash")


def script(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def completed(script_of: str, *typed: str) -> list[str]:
    """Return what bash offers for the last of the words that are typed."""
    assert BASH is not None
    line = " ".join(f"'{word}'" for word in ("sas", *typed))
    asked = (
        f"COMP_WORDS=({line}); COMP_CWORD={len(typed)}; _sas; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    ran = subprocess.run(
        [BASH, "--norc", "-c", f"{script_of}\n{asked}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.skipif(BASH is None, reason="there is no bash")
def test_bash_completes_verbs_options_and_what_an_option_can_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of = script(capsys, "bash")
    assert completed(of, "re") == ["resubmit", "rejected"]
    assert completed(of, "--env", "prod", "--verbose", "acknow") == ["acknowledge"]
    assert completed(of, "--env", "list", "show", "--la") == ["--last"]
    assert completed(of, "list", "--st") == ["--state", "--storage"]
    assert completed(of, "list", "--state", "r") == ["running", "rejected"]
    assert completed(of, "list", "--json", "--state", "e") == ["error"]
    assert completed(of, "rejected", "re") == ["resend", "remove"]
    assert completed(of, "show", "NW-1") == []
    assert completed(of, "show", "NW-1", "--last", "") == []  # a text follows: files, by default


@pytest.mark.skipif(BASH is None, reason="there is no bash")
def test_bash_offers_the_profiles_of_this_directory_after_env(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".sas.toml").write_text("[prod]\n[preview]\n[test]\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    of = script(capsys, "bash")
    assert completed(of, "--env", "pr") == ["preview", "prod"]
    assert completed(of, "list", "--env", "") == ["preview", "prod", "test"]


@pytest.mark.skipif(BASH is None, reason="there is no bash")
def test_bash_offers_every_option_of_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    of = script(capsys, "bash")
    for one in words_of(build_parser()):
        assert set(completed(of, one.verb, "--")) == {name for name, _ in one.options}, one.verb


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_names_every_verb_and_every_option(
    capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    of = script(capsys, shell)
    for one in words_of(build_parser()):
        assert one.verb in of
        for name, _ in one.options:
            assert (name if shell != "fish" else f"-l {name.removeprefix('--')}") in of


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_another_shell_can_read_its_script(
    capsys: pytest.CaptureFixture[str], shell: str, tmp_path: Path
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} here")
    file = tmp_path / "script"
    file.write_text(script(capsys, shell))
    subprocess.run([program, "-n", str(file)], check=True)


FISH, ZSH = shutil.which("fish"), shutil.which("zsh")


@pytest.mark.skipif(FISH is None, reason="there is no fish")
def test_fish_completes_by_the_verb_which_is_the_first_word_that_is_not_an_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "script"
    file.write_text(script(capsys, "fish"))

    def offered(typed: str) -> list[str]:
        asked = [str(FISH), "--no-config", "-c", f"source {file}; complete -C 'sas {typed}'"]
        ran = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert ran.stderr == ""
        return [line.partition("\t")[0] for line in ran.stdout.splitlines()]

    assert offered("re") == ["rejected", "resubmit"]
    assert offered("--env prod -v acknow") == ["acknowledge"]
    assert offered("--env list show --la") == ["--last"]
    assert offered("list --state r") == ["rejected", "running"]
    assert offered("rejected re") == ["remove", "resend"]
    assert offered("rejected list --sta") == []  # it is an option of the verb list
    assert offered("dlq ") == ["explain", "list", "redrive"]
    assert offered("export s") == ["script"]


@pytest.mark.skipif(ZSH is None, reason="there is no zsh")
def test_zsh_offers_what_can_follow(capsys: pytest.CaptureFixture[str]) -> None:
    ends = """
        compdef() { }; compadd() { shift; print -l -- "$@" }; _describe() { print -l -- ${(P)2} }
    """

    def offered(*typed: str) -> list[str]:
        words = " ".join(f"'{word}'" for word in ("sas", *typed))
        asked = f"{ends}\n{of}\nwords=({words}); CURRENT={1 + len(typed)}; _sas"
        zsh = [str(ZSH), "-f", "-c", asked]
        ran = subprocess.run(zsh, capture_output=True, text=True, check=True)
        assert ran.stderr == ""
        return ran.stdout.splitlines()

    of = script(capsys, "zsh")
    assert "resubmit:run the failed steps of an order again" in offered("--env", "prod", "re")
    assert "--last" in offered("--env", "list", "show", "--la")
    assert offered("list", "--state", "r")[:2] == ["error", "running"]
    assert "resend" in offered("rejected", "re")


def test_a_verb_without_summary_or_choices_is_completed_too() -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers()
    verbs.add_parser("go").add_argument("--how", choices=[1, 2])
    (words,) = words_of(parser)
    assert (words.verb, words.summary) == ("go", "")
    assert dict(words.choices) == {"--how": ["1", "2"]}
