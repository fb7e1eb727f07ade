"""azure.yaml, its parameters and hooks, the workflows and the devcontainer."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from sas.cli import desk
from tests.infra.kit import APP, PARAMETERS, ROOT, parameters, read_yaml

AZURE_YAML = ROOT / "azure.yaml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONS = sorted((ROOT / ".github" / "actions").glob("*/action.yml"))


def test_what_azure_yaml_names_is_there() -> None:
    content = read_yaml(AZURE_YAML)
    assert (ROOT / content["infra"]["path"] / "main.bicep").is_file()
    for name, each in content["hooks"].items():
        posix, windows = (each[system]["run"].split(" && ")[-1] for system in ("posix", "windows"))
        assert posix == f".venv/bin/sas azd {name}"
        assert windows == rf".venv\Scripts\sas azd {name}"
    assert re.findall(r"'azd-service-name': '(\w+)'", APP) == list(content["services"])


def test_azd_packages_nothing_and_deploys_only_a_zip_that_is_named() -> None:
    """A hook of a service runs before azd packages it, which ``--from-package`` leaves out."""
    content = read_yaml(AZURE_YAML)
    [service] = content["services"].values()
    assert service["remoteBuild"] is False
    assert content["workflows"]["up"]["steps"] == [{"azd": "provision --no-state"}]
    refusals = {hook["run"] for hook in service["hooks"]["prepackage"].values()}
    [refusal] = refusals
    ran = subprocess.run(["/bin/sh", "-c", refusal], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "sas azd package && sas azd deploy build/app.zip" in ran.stdout


def test_parameters_are_those_of_main_bicep() -> None:
    declared = parameters(Path("main.bicep"))
    assert set(PARAMETERS) <= set(declared)
    needed = {name for name, has_default in declared.items() if not has_default}
    assert needed <= set(PARAMETERS)


def test_all_that_is_pinned_is_looked_at_every_week() -> None:
    config = read_yaml(ROOT / ".github" / "dependabot.yml")
    assert config["version"] == 2
    looked_at = set()
    for update in config["updates"]:
        assert update["schedule"]["interval"] == "weekly"
        places = update.get("directories") or [update["directory"]]
        looked_at |= {(update["package-ecosystem"], place) for place in places}
    locks = list(ROOT.glob("*/*/package-lock.json"))
    locks += [*ROOT.glob("*/*/*/package-lock.json"), *ROOT.glob("*/*/*/*/package-lock.json")]
    npm = {
        ("npm", f"/{path.parent.relative_to(ROOT).as_posix()}")
        for path in locks
        if {"node_modules", "build"}.isdisjoint(path.parts)
    }
    actions = {
        ("github-actions", f"/{path.parent.relative_to(ROOT).as_posix()}") for path in ACTIONS
    }
    assert looked_at == {("pip", "/"), ("github-actions", "/")} | npm | actions


def test_every_action_is_pinned_to_a_commit_and_says_its_version() -> None:
    for path in (*WORKFLOWS, *ACTIONS):
        used = re.findall(r"uses: (?!\./)(.*)", path.read_text())
        assert used or "uses: ./" in path.read_text()
        for action in used:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


DOWNLOADS = {
    r"\bpipx (.*)": r"nothing fits",  # it knows no hashes
    r"az bicep (?:install|upgrade)(.*)": r" --version v\d+\.\d+\.\d+",
    r"\bpip install (.*)": r".*--require-hashes.*",
    r"\bnpx (\S+)": r"[@\w/-]+@\d+\.\d+\.\d+",
    r"\baz extension add(.*)": r".* --version \d+\.\d+\.\d+.*",
    r"(?:curl|wget) (.*)": r"nothing fits",
}
"""What downloads a tool in a workflow, and how it is pinned."""


def test_every_tool_that_a_workflow_downloads_is_pinned() -> None:
    for path in (*WORKFLOWS, *ACTIONS):
        text = path.read_text()
        for begins, pinned in DOWNLOADS.items():
            for download in re.findall(begins, text):
                assert re.fullmatch(pinned, download), f"{path.name}: {download}"
        assert text.count("Azure/setup-azd@") == len(
            re.findall(r"  version: \d+\.\d+\.\d+\n", text)
        )


def test_the_workflow_has_an_azd_that_azure_yaml_accepts() -> None:
    least = read_yaml(AZURE_YAML)["requiredVersions"]["azd"].removeprefix(">= ")
    [action] = [path.read_text() for path in ACTIONS if "setup-azd" in path.read_text()]
    setup = re.search(r"  version: (\d+\.\d+\.\d+)", action)
    assert setup is not None
    numbers = [[int(part) for part in version.split(".")] for version in (least, setup[1])]
    assert numbers[0] <= numbers[1]


def test_workflows_have_few_rights_and_keep_no_credentials() -> None:
    for path in WORKFLOWS:
        content = read_yaml(path)
        assert content["permissions"] == {"contents": "read"}
        text = path.read_text()
        assert text.count("actions/checkout@") == text.count("persist-credentials: false")


def test_the_devcontainer_runs_make_up_and_forwards_what_it_serves() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["onCreateCommand"] == "make setup"
    assert container["postAttachCommand"] == "make up"
    assert set(container["forwardPorts"]) == {desk.PORT, 7071}
    assert {int(port) for port in container["portsAttributes"]} == set(container["forwardPorts"])
    assert any("/node:" in feature for feature in container["features"])


def test_the_devcontainer_starts_the_official_emulator_and_azurite() -> None:
    folder = ROOT / ".devcontainer" / "emulator"
    container = json.loads((folder / "devcontainer.json").read_text())
    compose = read_yaml(folder / container["dockerComposeFile"])
    emulator = read_yaml((folder / compose["include"][0]["path"]).resolve())
    assert container["service"] in compose["services"]
    assert "azurite" in compose["services"]
    assert re.search(r"servicebus-emulator:2\.", emulator["services"]["emulator"]["image"])
    assert "mssql/server" in emulator["services"]["sqlserver"]["image"]
    assert "azure-functions-core-tools@4" in (folder / "post-create.sh").read_text()


def test_the_devcontainer_makes_its_password_once_and_never_commits_it(tmp_path: Path) -> None:
    script = tmp_path / "password.sh"
    script.write_text((ROOT / ".devcontainer" / "emulator" / "password.sh").read_text())
    passwords = []
    for _ in range(2):
        subprocess.run(["/bin/sh", script], check=True)
        passwords.append((tmp_path / ".env").read_text())
    assert passwords[0] == passwords[1]
    assert re.fullmatch(r"MSSQL_SA_PASSWORD=Aa1-[0-9a-f]{32}\n", passwords[0])
    assert ".env" in (ROOT / ".devcontainer" / "emulator" / ".gitignore").read_text().split()
