"""``sas new``, from the working copy."""

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
import zipfile
from pathlib import Path
from typing import Any

import pytest

from devstack.__main__ import parser
from sas.cli.main import main
from sas.deploy.queues import read_list
from sas.distribution import version
from sas.project import DEPLOYMENT, NEW, TEMPLATE, WHEELS, WORKFLOW, sources
from tests.command_line import check_command
from tools.dist import ROOT

yaml: Any = importlib.import_module("yaml")
SETTINGS = {"STOCK_URL", "PAYMENT_URL"}
DERIVED = {"infra/emulator/Config.json", "infra/main.parameters.json", "infra/queues.json"}


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    folder = tmp_path / "tea_shop"
    assert main(["new", str(folder)]) == 0
    assert f"Next: cd {folder} && make test" in capsys.readouterr().out
    return folder


@pytest.fixture
def deployable(project: Path) -> Path:
    ran = sas(project, "infra")
    assert ran.returncode == 0, ran.stderr
    return project


def sas(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a project. It imports the project's own `orders`."""
    return subprocess.run(
        [sys.executable, "-m", "sas.cli", *words],
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip


def changed(project: Path, file: str, text: str, other: str) -> None:
    content = (project / file).read_text()
    assert text in content
    (project / file).write_text(content.replace(text, other))


def files_of(project: Path) -> dict[str, str]:
    files = (path for path in project.rglob("*") if path.is_file())
    paths = (path for path in files if path.parent.name != "__pycache__")
    return {path.relative_to(project).as_posix(): path.read_text() for path in paths}


def test_a_project_has_the_files_of_the_template_and_few_of_them(project: Path) -> None:
    files = files_of(project)
    template = {source for source in sources(NEW) if not source.startswith(WORKFLOW)}
    assert set(files) == {source.removeprefix(TEMPLATE) for source in template}
    assert len(files) < 20
    assert not {path for path in files if "@NAME@" in files[path] or "@VERSION@" in files[path]}


def test_what_deploys_it_is_added_on_demand_and_is_that_of_this_repository(
    deployable: Path,
) -> None:
    files = files_of(deployable)
    added = {source.removeprefix(TEMPLATE): source for source in sources(DEPLOYMENT)}
    assert set(added) <= set(files)
    other = {path for path, name in added.items() if files[path] != (ROOT / name).read_text()}
    assert other == DERIVED | {"azure.yaml", "infra/README.md"}


def test_its_requirements_name_the_version_that_wrote_it(project: Path) -> None:
    for name in ("requirements.in", "requirements-dev.txt"):
        versions = re.findall(
            r"^scheduler-agent.*==(.*)$", (project / name).read_text(), re.MULTILINE
        )
        assert versions
        assert set(versions) == {version()}


def test_its_settings_on_this_machine_are_ours_and_those_of_its_business(project: Path) -> None:
    settings = json.loads((project / "local.settings.json").read_text())["Values"]
    ours = json.loads((ROOT / "local.settings.json").read_text())["Values"]
    assert len(settings.pop("SAS_CALLBACK_KEY")) >= 32  # no app of theirs is deployed with it
    ours.pop("SAS_CALLBACK_KEY")
    assert {n: v for n, v in settings.items() if n not in SETTINGS} == {
        name: value for name, value in ours.items() if not name.startswith("ORDERS_")
    }


def test_a_new_project_follows_from_its_business_with_and_without_infra(project: Path) -> None:
    for words in (["infra", "--check"], ["infra"], ["infra", "--check"]):
        ran = sas(project, *words)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert sas(project, "infra").stdout == "Everything follows from the app already.\n"
    queues = {queue["name"] for queue in read_list(project)["queues"]}
    assert {name for name in queues if name.startswith("agent-")} == {
        f"agent-{name}{lane}" for name in ("stock", "payment") for lane in ("", "-urgent")
    }
    parameters = json.loads((project / "infra/main.parameters.json").read_text())["parameters"]
    assert set(parameters["businessSettings"]["value"]) == SETTINGS
    principal = "${SAS_PRINCIPAL_WEB=}"
    assert parameters["applications"]["value"] == [{"name": "web", "principalId": principal}]


def test_what_no_longer_follows_from_the_business_is_named_and_written_again(
    deployable: Path,
) -> None:
    changed(deployable, "orders.py", 'agent="stock"', 'agent="courier"')
    changed(deployable, "orders.py", '"STOCK_URL"', '"COURIER_URL"')
    changed(deployable, "pyproject.toml", '["web"]', '["web", "desk"]\nbound = ["desk"]')
    ran = sas(deployable, "infra", "--check")
    assert ran.returncode == 1
    for sentence in (
        'infra/queues.json lacks access.appReceives[] "agent-courier"',
        'should not have access.appReceives[] "agent-stock"',
        "infra/main.parameters.json lacks parameters.applications.value[desk].bound true",
        'local.settings.json lacks Values.COURIER_URL "", Values.SAS_APPLICATIONS "desk"',
    ):
        assert sentence in ran.stdout
    assert "Give a value in local.settings.json: COURIER_URL" in sas(deployable, "infra").stdout
    assert sas(deployable, "infra", "--check").returncode == 0
    emulated = (deployable / "infra/emulator/Config.json").read_text()
    for queue in ("agent-courier-urgent", "orders-desk", "responses-desk"):
        assert f'"{queue}"' in emulated
    assert "agent-stock" not in emulated


def test_an_agent_of_the_function_app_that_the_named_module_lacks_is_told(
    deployable: Path,
) -> None:
    (deployable / "parcels.py").write_text(
        "from orders import Order\nfrom sas import Call, Saga\n\n"
        'parcels = Saga("parcel", Order)\n\n\n@parcels.step(agent="courier")\n'
        'async def send(call: Call[Order]) -> str:\n    return "sent"\n'
    )
    changed(
        deployable,
        "function_app.py",
        "from orders import",
        "from parcels import parcels\nfrom orders import",
    )
    changed(deployable, "function_app.py", "function_app(orders)", "function_app(orders, parcels)")
    sentence = (
        "function_app.py has the agent courier, which no saga of orders has: "
        "import its saga into orders, the module that [tool.sas] names\n"
    )
    for words in (["infra", "--check"], ["infra"]):
        ran = sas(deployable, *words)
        assert ran.returncode == 1, ran.stderr
        assert ran.stdout.endswith(sentence)
    changed(
        deployable, "local.settings.json", '"STOCK_URL": "http://127.0.0.1:7201"', '"STOCK_URL": ""'
    )
    ran = sas(deployable, "infra", "--check")
    assert (ran.returncode, ran.stdout) == (0, "")
    assert re.fullmatch(r"function_app\.py is not compared: .*STOCK_URL.*\n", ran.stderr)


def test_what_a_person_wrote_into_the_parameters_stays(deployable: Path) -> None:
    file = "infra/main.parameters.json"
    changed(deployable, file, '"name": "web"', '"name": "web", "urgent": true')
    changed(deployable, file, '"${STOCK_URL}"', '"${STOCK_URL=https://stock.example}"')
    changed(deployable, file, '"STOCK_URL":', '"SAS_AGENT_LIMITS": "stock:4", "STOCK_URL":')
    before = (deployable / file).read_text()
    assert sas(deployable, "infra", "--check").returncode == 0
    assert sas(deployable, "infra").returncode == 0
    assert (deployable / file).read_text() == before


@pytest.mark.parametrize(
    ("text", "other", "sentence"),
    [
        ("[tool.sas]", "[tool.other]", "no application is named"),
        ('["web"]', '["Web"]', "'Web': use lower-case letters"),
        ('["web"]', '["web"]\nsettings = ["a-b"]', "'a-b': use upper-case letters"),
        ('["web"]', '["web"]\nbound = ["desk"]', "bound names 'desk', which is none of"),
        ('["web"]', '["smoke"]', "applications has 'smoke'"),
        ('"orders"', '"nowhere"', "No module named 'nowhere'"),
    ],
)
def test_a_business_that_is_not_named_well_is_refused(
    project: Path, text: str, other: str, sentence: str
) -> None:
    changed(project, "pyproject.toml", text, other)
    ran = sas(project, "infra")
    assert ran.returncode == 2
    assert sentence in ran.stderr
    assert not (project / "infra").exists()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("local.settings.json", "[]"),
        ("infra/main.parameters.json", "{}"),
        ("infra/queues.json", ""),
    ],
)
def test_a_file_that_cannot_be_used_is_named(deployable: Path, file: str, text: str) -> None:
    (deployable / file).write_text(text)
    ran = sas(deployable, "infra", "--check")
    assert ran.returncode == 2
    assert "cannot be used" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_emulator_s_queues_need_no_infra(project: Path) -> None:
    assert sas(project, "infra", "--emulator", "here/Config.json").returncode == 0
    assert '"agent-payment-urgent"' in (project / "here" / "Config.json").read_text()
    assert not (project / "infra").exists()


def test_azd_s_hook_without_infra_says_what_to_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_ENV_NAME", "shop")
    ran = sas(project, "azd", "check")
    assert (ran.returncode, "run `sas infra` first" in ran.stderr) == (1, True)


def test_an_export_of_the_orders_is_neither_committed_nor_deployed(deployable: Path) -> None:
    for name in (".gitignore", ".funcignore"):
        lines = (deployable / name).read_text().splitlines()
        assert "*.jsonl.gz" in lines
        assert "build" in [line.rstrip("/") for line in lines]


def test_its_azure_yaml_has_its_name(deployable: Path) -> None:
    content = yaml.safe_load((deployable / "azure.yaml").read_text())
    assert content["name"] == "tea-shop"


def test_its_pages_link_to_files_that_it_has(deployable: Path) -> None:
    for page in deployable.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_its_workflows_are_valid(deployable: Path) -> None:
    for path in (deployable / ".github" / "workflows").iterdir():
        jobs = yaml.safe_load(path.read_text())["jobs"]
        for job in jobs.values():
            if called := job.get("uses"):
                assert (deployable / called).exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["Tea Shop"], "use letters and digits, with - between them"),
        (["full"], "is not empty: name a new directory"),
        (["shop", "--wheels", "full"], "has no scheduler_agent_supervisor-"),
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
    output = capsys.readouterr().out
    assert output.splitlines()[0].endswith(step)
    assert "write it again with --wheels DIR" in output


def test_the_project_s_rule_for_the_branch_requires_the_check_of_its_own_workflow(
    deployable: Path,
) -> None:
    jobs = yaml.safe_load((deployable / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    page = (deployable / "infra" / "README.md").read_text()
    assert [f"project of your own `{job}`) passed" in page for job in jobs] == [True]


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
    program(project / ".venv" / "bin" / "sas", f'exec {sys.executable} -m sas.cli "$@"')
    (project / ".venv" / ".ready").touch()
    words = make(project, "up").stdout.splitlines()
    up = parser().parse_args(words[words.index("up") :])
    services, desk = up.beside
    assert (project / up.config).is_file()
    assert up.needs == [(7201, "services.py"), (7474, "the desk")]
    assert services == ".venv/bin/python services.py 7201"
    assert desk.split()[1] == "desk"
    check_command(desk.split()[1:])


def test_an_old_python_is_refused_before_anything_is_made(project: Path, tmp_path: Path) -> None:
    code = "import sys; sys.version_info = (3, 10, 1); exec(sys.argv[1])"
    old = program(tmp_path / "old-python", f"""exec {sys.executable} -c '{code}' "$2" """)
    ran = make(project, "setup", f"PYTHON={old}")
    assert ran.returncode != 0
    assert ran.stdout == (
        f"{old} is missing or older than 3.11: install Python 3.11, 3.12 or 3.13, "
        "or say make PYTHON=/path/to/python\n"
    )
    assert not (project / ".venv").exists()


def pip(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run our own pip in the project, without an index: to make an environment takes seconds."""
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--dry-run"]
    env = {name: text for name, text in os.environ.items() if not name.startswith("PIP_")}
    return subprocess.run(
        [*command, "--ignore-installed", "--isolated", *words],
        cwd=project, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for package in WHEELS.values():
        write_wheel(folder, package, version())
        write_wheel(folder, package, "99.0")  # not of this version, and not the project's
    return folder


def write_wheel(directory: Path, package: str, number: str) -> None:
    about = f"{package}-{number}.dist-info"
    with zipfile.ZipFile(directory / f"{package}-{number}-py3-none-any.whl", "w") as wheel:
        name = package.replace("_", "-")
        wheel.writestr(
            f"{about}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
            + "".join(f"Provides-Extra: {e}\n" for e in ("functions", "telemetry")),
        )
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def test_pip_installs_just_the_wheels_that_the_project_was_given(
    tmp_path: Path, wheels: Path
) -> None:
    project = tmp_path / "shop"
    assert main(["new", str(project), "--wheels", str(wheels)]) == 0
    names = [f"{package}-{version()}-py3-none-any.whl" for package in WHEELS.values()]
    assert sorted(path.name for path in (project / "wheels").iterdir()) == sorted(names)

    write_wheel(project / "wheels", "scheduler_agent_supervisor", "99.0")
    ran = pip(project, "-r", "requirements.txt")
    assert f"Would install scheduler-agent-supervisor-{version()}" in ran.stdout, ran.stderr
    assert f"./wheels/{names[1]}\n" in (project / "requirements-dev.txt").read_text()


def test_where_pip_finds_no_package_the_option_for_wheels_is_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pip is ours: to install one into the .venv takes seconds."""
    monkeypatch.setenv("PYTHONPATH", sysconfig.get_path("purelib"))
    (project / "requirements.in").write_text("--no-index\nscheduler-agent-supervisor==0\n")
    quick = 'case "$*" in "-m venv "*) set -- "$@" --without-pip; esac'
    python = program(tmp_path / "python", quick, f'exec {sys.executable} "$@"')
    ran = make(project, "setup", f"PYTHON={python}")
    assert ran.returncode != 0
    assert "No matching distribution" in ran.stderr
    assert "write the project again with: sas new --wheels DIR" in ran.stdout
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
