"""``sas new`` and ``sas upgrade``, from the working copy."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from devstack.__main__ import parser
from sas.cli.main import build_parser, main
from sas.distribution import version
from sas.project.new import BASE, MANIFEST, _remember
from sas.project.template import BUSINESS, TEMPLATE, sources
from tools.dist import ROOT
from tools.infra_queues import (
    all_queues,
    applications,
    differences,
    emulator_queues,
    inconsistent,
    read_list,
)

yaml: Any = importlib.import_module("yaml")
CHANGED_FOR_THE_PROJECT = {
    "azure.yaml",
    "local.settings.json",
    "infra/README.md",
    "infra/emulator/Config.json",
    "infra/main.parameters.json",
    "infra/queues.json",
}


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    made = tmp_path / "tea_shop"
    assert main(["new", str(made)]) == 0
    assert f"Next: cd {made} && make test" in capsys.readouterr().out
    return made


def files_of(project: Path) -> dict[str, str]:
    paths = (path for path in project.rglob("*") if path.is_file())
    held = {path.relative_to(project).as_posix(): path.read_text() for path in paths}
    return {path: text for path, text in held.items() if not path.startswith(f"{BASE.as_posix()}/")}


def test_a_project_has_every_file_of_the_template_and_the_shared_ones_unchanged(
    project: Path,
) -> None:
    held = files_of(project)
    wanted = {source.removeprefix(TEMPLATE): source for source in sources(ROOT)}
    assert set(held) == {*wanted, MANIFEST.as_posix()}
    same = {path for path, source in wanted.items() if held[path] == (ROOT / source).read_text()}
    of_the_template = {path for path, source in wanted.items() if source.startswith(TEMPLATE)}
    assert set(wanted) - same - of_the_template == CHANGED_FOR_THE_PROJECT
    assert not {path for path in held if "@NAME@" in held[path] or "@VERSION@" in held[path]}


def test_its_requirements_name_the_version_that_wrote_it(project: Path) -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        asked = re.findall(r"^scheduler-agent.*==(.*)$", (project / name).read_text(), re.MULTILINE)
        assert asked
        assert set(asked) == {version()}


def test_its_queues_agree_with_each_other_and_its_settings_with_its_business(
    project: Path,
) -> None:
    infra = project / "infra"
    listed = read_list(infra)
    assert inconsistent(listed) == []
    assert applications(infra) == ["web"]
    azure, emulated = all_queues(listed, ["web"]), emulator_queues(infra)
    assert set(azure) == set(emulated)
    assert not [name for name in azure if differences(azure[name], emulated[name])]
    own = json.loads((project / "local.settings.json").read_text())["Values"]
    ours = json.loads((ROOT / "local.settings.json").read_text())["Values"]
    assert {n: v for n, v in own.items() if n not in BUSINESS} == {
        name: value for name, value in ours.items() if not name.startswith("ORDERS_")
    }
    asked = json.loads((infra / "main.parameters.json").read_text())["parameters"]
    assert set(asked["businessSettings"]["value"]) == set(BUSINESS)


def test_its_azure_yaml_has_its_name(project: Path) -> None:
    content = yaml.safe_load((project / "azure.yaml").read_text())
    assert content["name"] == "tea-shop"


def test_its_pages_link_to_files_that_it_has(project: Path) -> None:
    for page in project.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_its_workflows_are_valid(project: Path) -> None:
    for path in (project / ".github" / "workflows").iterdir():
        jobs = yaml.safe_load(path.read_text())["jobs"]
        for job in jobs.values():
            if called := job.get("uses"):
                assert (project / called).exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["Tea Shop"], "use letters and digits, with - between them"),
        (["full"], "is not empty: name a new directory"),
        (["shop", "--wheels", "full"], "holds no scheduler_agent_supervisor*.whl"),
    ],
)
def test_a_project_that_cannot_be_written_is_refused(
    tmp_path: Path,
    words: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    assert main(["new", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize(
    ("directory", "step"),
    [("my dir/shop", "Next: cd 'my dir/shop' && make test"), (".", "Next: make test")],
)
def test_the_next_step_can_be_pasted(
    tmp_path: Path,
    directory: str,
    step: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert main(["new", directory]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0].endswith(step)
    assert "put its two wheels into wheels/ first" in said


def test_a_directory_that_sas_new_did_not_write_cannot_be_upgraded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upgrade", str(tmp_path)]) == 2
    assert "is for a project of `sas new`" in capsys.readouterr().err


def older(project: Path) -> None:
    """Make the project one of an older template.

    That template had another host.json, no compose.yaml, another Makefile (which the adopter
    changed since), and a file ``tools/old.py``. The adopter removed ``orders.jsonl``.
    """
    files = {path: text for path, text in files_of(project).items() if path != str(MANIFEST)}
    files["host.json"] = '{"version": "2.0"}\n'
    files["Makefile"] = "test:\n"
    files["tools/old.py"] = "# old\n"
    for path in ("host.json", "tools/old.py"):
        (project / path).write_text(files[path])
    (project / "Makefile").write_text("test:\n\techo mine\n")
    files.pop("infra/emulator/compose.yaml")
    (project / "infra" / "emulator" / "compose.yaml").unlink()
    (project / "orders.jsonl").unlink()
    (project / "orders" / "agents.py").write_text("# mine\n")
    _remember(project, "tea-shop", files)
    manifest = {"name": "tea-shop", "version": "0.0.9"}
    (project / MANIFEST).write_text(json.dumps(manifest))


def test_an_upgrade_shows_what_the_template_changed_and_changes_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upgrade", str(project)]) == 0
    older(project)
    before = files_of(project)
    capsys.readouterr()
    assert main(["upgrade", str(project)]) == 1
    said = capsys.readouterr().out
    told = dict(re.findall(r"^(\S+): (.*template.*)$", said, re.MULTILINE))
    assert told == {
        "host.json": "changed in the template",
        "Makefile": "changed in the template and by you",
        "infra/emulator/compose.yaml": "new in the template",
        "tools/old.py": "no longer in the template",
    }
    assert '-{"version": "2.0"}\n' in said
    assert "+++ template/host.json\n" in said
    assert "4 files of the template changed since 0.0.9. `sas upgrade --apply` writes or" in said
    assert "removes 3 files; 1 get NAME.template beside them, merge by hand." in said
    assert files_of(project) == before


def test_an_applied_upgrade_keeps_what_the_adopter_changed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_new = files_of(project)
    older(project)
    assert main(["upgrade", str(project), "--apply"]) == 0
    assert "Makefile.template: not merged yet. Merge it" in capsys.readouterr().out
    held = files_of(project)
    assert held["Makefile"] == "test:\n\techo mine\n"
    assert held["Makefile.template"] == as_new["Makefile"]
    assert held["orders/agents.py"] == "# mine\n"
    for path in ("host.json", "infra/emulator/compose.yaml"):
        assert held[path] == as_new[path]
    assert not {"tools/old.py", "orders.jsonl"} & set(held)
    assert (project / BASE / "host.json").read_text() == held["host.json"]
    assert json.loads(held[MANIFEST.as_posix()])["version"] == version()
    assert main(["upgrade", str(project)]) == 0
    said = capsys.readouterr().out
    assert f"The template changed nothing since {version()}." in said
    assert "Makefile.template: not merged yet. Merge it" in said
    (project / "Makefile.template").unlink()
    assert main(["upgrade", str(project)]) == 0
    assert "not merged yet" not in capsys.readouterr().out


def test_an_upgrade_in_json_names_the_files_that_are_not_merged(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older(project)
    assert told_in_json(project, capsys, "--apply") == {
        ("Makefile", "changed in the template and by you", True),
        ("host.json", "changed in the template", True),
        ("infra/emulator/compose.yaml", "new in the template", True),
        ("tools/old.py", "no longer in the template", True),
        ("Makefile.template", "not merged yet", False),
    }
    assert told_in_json(project, capsys) == {("Makefile.template", "not merged yet", False)}
    (project / "Makefile.template").unlink()
    assert told_in_json(project, capsys) == set()


def told_in_json(
    project: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> set[tuple[str, str, bool]]:
    capsys.readouterr()
    assert main(["upgrade", str(project), "--json", *words]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {(one["Path"], one["Change"], one["Applied"]) for one in told}


def test_the_diff_of_a_file_that_both_changed_has_the_changes_of_the_template_only(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older(project)
    assert main(["upgrade", str(project)]) == 1
    shown = capsys.readouterr().out
    assert "--- base/Makefile\n" in shown
    assert "echo mine" not in shown
    assert main(["upgrade", str(project), "--apply"]) == 0
    applied = capsys.readouterr().out
    assert "--- base/Makefile\n" in applied
    assert "echo mine" not in applied


def test_an_upgrade_does_not_replace_what_an_earlier_one_left_to_merge(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older(project)
    (project / "Makefile.template").write_text("half merged\n")
    before = files_of(project)
    assert main(["upgrade", str(project), "--apply"]) == 2
    assert "Makefile.template of an earlier upgrade is not merged" in capsys.readouterr().err
    assert files_of(project) == before


def test_the_agents_of_a_project_are_changed_by_its_own_command(project: Path) -> None:
    words = ["-m", "tools.queues", "--agents", "stock", "payment", "courier"]
    subprocess.run([sys.executable, *words], cwd=project, check=True, capture_output=True)
    listed = read_list(project / "infra")
    assert inconsistent(listed) == []
    assert "agent-courier" in {queue["name"] for queue in listed["queues"]}


def test_the_project_s_rule_for_the_branch_requires_the_checks_of_its_own_workflow(
    project: Path,
) -> None:
    jobs = yaml.safe_load((project / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    page = (project / "infra" / "README.md").read_text()
    rule = page.partition("A rule for `main`")[2].partition("- **")[0]
    assert rule
    assert set(re.findall(r"`(\w+)`", rule)) == set(jobs)
    assert not any("strategy" in job for job in jobs.values())


def make(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {
        name: text for name, text in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    return subprocess.run(
        [str(shutil.which("make")), *words],
        cwd=project,
        env=env,  # `make test` may run this test
        capture_output=True,
        text=True,
        check=False,
    )


def program(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def test_every_phony_target_of_its_makefile_has_a_rule(project: Path) -> None:
    content = (project / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", content, re.MULTILINE)
    assert phony
    assert set(phony[1].split()) == set(re.findall(r"^([a-z]+):", content, re.MULTILINE))


def test_make_up_of_a_project_starts_its_services_and_the_desk(project: Path) -> None:
    program(project / ".venv" / "bin" / "devstack", 'printf "%s\\n" "$@"')
    (project / ".venv" / ".ready").touch()
    said = make(project, "up").stdout.splitlines()
    up = parser().parse_args(said[said.index("up") :])
    services, desk = up.beside
    assert up.needs == [(7201, "services.py"), (7474, "the desk")]
    assert services == ".venv/bin/python services.py 7201"
    assert build_parser().parse_args(desk.split()[1:]).verb.name == "desk"


def test_an_old_python_is_refused_before_anything_is_made(project: Path, tmp_path: Path) -> None:
    code = "import sys; sys.version_info = (3, 10, 1); exec(sys.argv[1])"
    old = program(tmp_path / "old-python", f"""exec {sys.executable} -c '{code}' "$2" """)
    ran = make(project, "setup", f"PYTHON={old}")
    assert ran.returncode != 0
    assert ran.stdout == (
        f"{old} is missing or older than 3.11: install Python 3.11 or newer, "
        "or say make PYTHON=/path/to/python\n"
    )
    assert not (project / ".venv").exists()


def test_where_pip_finds_no_package_the_wheels_are_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pip is ours: to install one into the .venv takes seconds."""
    monkeypatch.setenv("PYTHONPATH", sysconfig.get_path("purelib"))
    (project / "requirements-dev.txt").write_text("--no-index\nscheduler-agent-supervisor==0\n")
    quick = 'case "$*" in "-m venv "*) set -- "$@" --without-pip; esac'
    python = program(tmp_path / "python", quick, f'exec {sys.executable} "$@"')
    ran = make(project, "setup", f"PYTHON={python}")
    assert ran.returncode != 0
    assert "No matching distribution" in ran.stderr
    assert "put its two wheels into wheels/ and run make again" in ran.stdout
    assert not (project / ".venv" / ".ready").exists()


def test_the_error_for_a_taken_port_of_its_services_says_where_to_change_it(project: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        ran = subprocess.run(
            [sys.executable, "services.py", str(port)],
            cwd=project, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert ran.returncode == 1
    assert f"change {port} in the Makefile (target up) and in local.settings.json" in ran.stderr
    assert "Traceback" not in ran.stderr
