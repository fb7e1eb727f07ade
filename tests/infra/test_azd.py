"""azure.yaml, its parameters and hooks, the workflows and the devcontainer."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

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
