"""``sas new`` and ``sas infra``, from the working copy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.__main__ import parser
from sas.cli.main import main
from sas.deploy.queues import read_list
from sas.distribution import version
from sas.project import DEPLOYMENT, NEW, TEMPLATE, WORKFLOW, create, sources
from tests.command_line import check_command
from tests.forked import Said, sas_said
from tests.infra.kit import LOCAL, read_yaml
from tools.dist import ROOT

SETTINGS = {"STOCK_URL", "PAYMENT_URL"}
DERIVED = {"infra/emulator/Config.json", "infra/main.parameters.json", "infra/queues.json"}


def sas(project: Path, *words: str) -> Said:
    """Run the command in a project. It imports the project's own `orders`."""
    return sas_said(words, os.environ, cwd=project)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "tea_shop"
    create(folder)
    return folder


@pytest.fixture(scope="module")
def with_infra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with what deploys it. Tests only read it."""
    folder = tmp_path_factory.mktemp("new") / "tea_shop"
    create(folder)
    for words in (["infra", "--check"], ["infra"], ["infra", "--check"]):
        ran = sas(folder, *words)
        assert ran.code == 0, ran.out + ran.err
    return folder


@pytest.fixture
def deployable(with_infra: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(with_infra, tmp_path / "tea_shop"))


def changed(project: Path, file: str, text: str, other: str) -> None:
    content = (project / file).read_text()
    assert text in content
    (project / file).write_text(content.replace(text, other))


def files_of(project: Path) -> dict[str, str]:
    files = (path for path in project.rglob("*") if path.is_file())
    paths = (path for path in files if path.parent.name != "__pycache__")
    return {path.relative_to(project).as_posix(): path.read_text() for path in paths}


def test_a_project_has_the_files_of_the_template_with_its_name_and_version(project: Path) -> None:
    files = files_of(project)
    template = {source for source in sources(NEW) if not source.startswith(WORKFLOW)}
    assert set(files) == {source.removeprefix(TEMPLATE) for source in template}
    assert not {path for path in files if "@NAME@" in files[path] or "@VERSION@" in files[path]}
    for name in ("requirements.in", "requirements-dev.txt"):
        assert set(re.findall(r"(?m)^scheduler-agent.*==(.*)$", files[name])) == {version()}
    settings = json.loads(files["local.settings.json"])["Values"]
    assert len(settings.pop("SAS_CALLBACK_KEY")) >= 32  # no app of theirs is deployed with it
    assert {name: value for name, value in settings.items() if name not in SETTINGS} == {
        name: value
        for name, value in LOCAL.items()
        if not name.startswith("ORDERS_") and name != "SAS_CALLBACK_KEY"
    }


def test_what_deploys_it_is_that_of_this_repository_for_its_own_business(with_infra: Path) -> None:
    files = files_of(with_infra)
    added = {source.removeprefix(TEMPLATE): source for source in sources(DEPLOYMENT)}
    assert set(added) <= set(files)
    other = {path for path, name in added.items() if files[path] != (ROOT / name).read_text()}
    assert other == DERIVED | {"azure.yaml", "infra/README.md"}
    assert read_yaml(with_infra / "azure.yaml")["name"] == "tea-shop"
    queues = {queue["name"] for queue in read_list(with_infra)["queues"]}
    assert {name for name in queues if name.startswith("agent-")} == {
        f"agent-{name}{lane}" for name in ("stock", "payment") for lane in ("", "-urgent")
    }
    parameters = json.loads(files["infra/main.parameters.json"])["parameters"]
    assert set(parameters["businessSettings"]["value"]) == SETTINGS
    principal = "${SAS_PRINCIPAL_WEB=}"
    assert parameters["applications"]["value"] == [{"name": "web", "principalId": principal}]
    for name in (".gitignore", ".funcignore"):  # an export of orders is neither kept nor deployed
        lines = files[name].splitlines()
        assert "*.jsonl.gz" in lines
        assert "build" in [line.rstrip("/") for line in lines]


def test_its_pages_and_workflows_name_files_and_checks_that_it_has(with_infra: Path) -> None:
    for page in with_infra.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
    workflows = with_infra / ".github" / "workflows"
    for path in workflows.iterdir():
        for job in read_yaml(path)["jobs"].values():
            assert "uses" not in job or (with_infra / job["uses"]).exists()
    page_text = (with_infra / "infra" / "README.md").read_text()
    [check] = read_yaml(workflows / "ci.yml")["jobs"]
    assert f"project of your own `{check}`) passed" in page_text, "the rule for the branch"


def test_what_no_longer_follows_from_the_business_is_named_and_written_again(
    deployable: Path,
) -> None:
    changed(deployable, "orders.py", 'agent="stock"', 'agent="courier"')
    changed(deployable, "orders.py", '"STOCK_URL"', '"COURIER_URL"')
    changed(deployable, "pyproject.toml", '["web"]', '["web", "desk"]\nbound = ["desk"]')
    ran = sas(deployable, "infra", "--check")
    assert ran.code == 1
    for sentence in (
        'infra/queues.json lacks access.appReceives[] "agent-courier"',
        'should not have access.appReceives[] "agent-stock"',
        "infra/main.parameters.json lacks parameters.applications.value[desk].bound true",
        'local.settings.json lacks Values.COURIER_URL "", Values.SAS_APPLICATIONS "desk"',
    ):
        assert sentence in ran.out
    assert "Give a value in local.settings.json: COURIER_URL" in sas(deployable, "infra").out
    assert sas(deployable, "infra", "--check").code == 0
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
    app = "function_app.py"
    changed(
        deployable, app, "from orders import", "from parcels import parcels\nfrom orders import"
    )
    changed(deployable, app, "function_app(orders)", "function_app(orders, parcels)")
    ran = compared(deployable)
    assert ran.returncode == 1, ran.stderr
    assert "function_app.py has the agent courier, which no saga of orders has: " in ran.stdout
    address = '"STOCK_URL": "http://127.0.0.1:7201"'
    changed(deployable, "local.settings.json", address, '"STOCK_URL": ""')
    ran = compared(deployable)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert re.fullmatch(r"function_app\.py is not compared: .*STOCK_URL.*\n", ran.stderr)


def compared(project: Path) -> subprocess.CompletedProcess[str]:
    """Run `sas infra --check` in a process that cannot find this repository's function_app."""
    command = [sys.executable, "-m", "sas.cli", "infra", "--check"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


def test_what_a_person_wrote_into_the_parameters_stays(deployable: Path) -> None:
    file = "infra/main.parameters.json"
    changed(deployable, file, '"name": "web"', '"name": "web", "urgent": true')
    changed(deployable, file, '"${STOCK_URL}"', '"${STOCK_URL=https://stock.example}"')
    changed(deployable, file, '"STOCK_URL":', '"SAS_AGENT_LIMITS": "stock:4", "STOCK_URL":')
    before = (deployable / file).read_text()
    assert sas(deployable, "infra", "--check").code == 0
    assert sas(deployable, "infra").code == 0
    assert (deployable / file).read_text() == before


def test_a_business_that_is_not_named_well_is_refused(project: Path) -> None:
    content = (project / "pyproject.toml").read_text()
    for text, other, sentence in (
        ("[tool.sas]", "[tool.other]", "no application is named"),
        ('["web"]', '["Web"]', "'Web': use lower-case letters"),
        ('["web"]', '["web"]\nsettings = ["a-b"]', "'a-b': use upper-case letters"),
        ('["web"]', '["web"]\nbound = ["desk"]', "bound names 'desk', which is none of"),
        ('["web"]', '["smoke"]', "applications has 'smoke'"),
        ('"orders"', '"nowhere"', "No module named 'nowhere'"),
    ):
        (project / "pyproject.toml").write_text(content.replace(text, other))
        ran = sas(project, "infra")
        assert ran.code == 2
        assert sentence in ran.err
        assert not (project / "infra").exists()


def test_a_file_that_cannot_be_used_is_named(deployable: Path) -> None:
    for file, text in (
        ("infra/queues.json", ""),
        ("infra/main.parameters.json", "{}"),
        ("local.settings.json", "[]"),
    ):
        before = (deployable / file).read_text()
        (deployable / file).write_text(text)
        ran = sas(deployable, "infra", "--check")
        assert (ran.code, "cannot be used" in ran.err) == (2, True), file
        (deployable / file).write_text(before)


def test_the_queues_of_the_emulator_need_no_infra_and_a_deployment_does(project: Path) -> None:
    assert sas(project, "infra", "--emulator", "here/Config.json").code == 0
    assert '"agent-payment-urgent"' in (project / "here" / "Config.json").read_text()
    assert not (project / "infra").exists()
    ran = sas_said(["azd", "check"], {**os.environ, "AZURE_ENV_NAME": "shop"}, cwd=project)
    assert (ran.code, "run `sas infra` first" in ran.err) == (1, True)


def test_a_project_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    for words, sentence in (
        (["Tea Shop"], "use letters and digits, with - between them"),
        (["full"], "is not empty: name a new directory"),
        (["shop", "--wheels", "full"], "has no scheduler_agent_supervisor-"),
    ):
        assert main(["new", *words]) == 2
        assert sentence in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def make(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run make as if no other make ran this test."""
    env = {
        name: text for name, text in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    command = [str(shutil.which("make")), *words]
    return subprocess.run(
        command, cwd=project, env=env, capture_output=True, text=True, check=False
    )


def program(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


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
