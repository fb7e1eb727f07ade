"""The two packages: what the wheels and sdists hold, and where their version is."""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from typing import Any

import pytest

from sas.distribution import FILES as FOLDER
from sas.project import DEPLOYMENT, NEW, PAGES, sources
from tools.dist import ROOT, build

FILES = f"sas/{FOLDER}/"
"""What `sas new` and `sas infra` write (with a folder `tests` and one `orders`), and the pages."""


def project(folder: str) -> dict[str, Any]:
    text = (ROOT / folder / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the files of each archive, by its name."""
    files = {}
    for path in build(tmp_path_factory.mktemp("dist")):
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                files[path.name] = wheel.namelist()
                metadata = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
                files[f"{path.name}/METADATA"] = wheel.read(metadata).decode().splitlines()
                scripts = next(n for n in wheel.namelist() if n.endswith("/entry_points.txt"))
                files[f"{path.name}/scripts"] = wheel.read(scripts).decode().splitlines()
        else:
            with tarfile.open(path) as archive:
                names = [member.name.partition("/")[2] for member in archive if member.isfile()]
                files[path.name] = names
    return files


SAS = "scheduler_agent_supervisor-{}-py3-none-any.whl".format(project(".")["project"]["version"])
DEVSTACK = SAS.replace("supervisor", "supervisor_devstack")


def metadata(built: dict[str, list[str]], wheel: str) -> Message:
    return Parser().parsestr("\n".join(built[f"{wheel}/METADATA"]))


def test_there_is_a_wheel_and_an_sdist_of_each(built: dict[str, list[str]]) -> None:
    archives = {name for name in built if "/" not in name}
    sdists = {name.replace("-py3-none-any.whl", ".tar.gz") for name in (SAS, DEVSTACK)}
    assert archives == {SAS, DEVSTACK, *sdists}


def test_a_wheel_holds_its_package_whole_and_nothing_else(built: dict[str, list[str]]) -> None:
    for wheel, folder in ((SAS, "sas"), (DEVSTACK, "devstack")):
        files = {name for name in built[wheel] if ".dist-info/" not in name}
        modules = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*.py")
            if {"node_modules", "tests"}.isdisjoint(path.parts)
        }
        written = {name for name in files if name.startswith(FILES)}
        assert {name for name in files - written if name.endswith(".py")} == modules
        assert {name.partition("/")[0] for name in files} == {folder}
        assert f"{folder}/py.typed" in files
        assert any(name.endswith("/licenses/LICENSE") for name in built[wheel])


def test_the_wheels_have_files_of_the_desk_pages_of_devstack_and_pins_of_azurite(
    built: dict[str, list[str]],
) -> None:
    for folder in ("templates", "static"):
        for path in (ROOT / "sas" / "desk" / folder).iterdir():
            assert f"sas/desk/{folder}/{path.name}" in built[SAS]
    for page in (ROOT / "devstack" / "docs").rglob("*.md"):
        assert page.relative_to(ROOT).as_posix() in built[DEVSTACK]
    pins = {"package.json", "package-lock.json", ".npmrc", "journal.js"}
    assert {f"devstack/azurite/{name}" for name in pins} <= set(built[DEVSTACK])


def test_the_wheel_and_the_sdist_have_every_file_of_a_project_and_every_page(
    built: dict[str, list[str]],
) -> None:
    expected = set(sources((*NEW, *DEPLOYMENT, *PAGES)))
    assert {name.removeprefix(FILES) for name in built[SAS] if name.startswith(FILES)} == expected
    sdist = set(built[SAS.replace("-py3-none-any.whl", ".tar.gz")])
    assert expected <= sdist, expected - sdist
    ours = {name for name in sdist if name.startswith(("tests/", "orders/", "samples/"))}
    assert ours <= expected


def test_the_commands_are_installed(built: dict[str, list[str]]) -> None:
    assert "sas = sas.cli.__main__:start" in built[f"{SAS}/scripts"]
    for name, module in (("devstack", "devstack"), ("devstack-servicebus", "devstack.servicebus")):
        assert f"{name} = {module}.__main__:main" in built[f"{DEVSTACK}/scripts"]


def test_the_base_needs_what_the_client_imports_and_the_rest_is_extras(
    built: dict[str, list[str]],
) -> None:
    about = metadata(built, SAS)
    needs = about.get_all("Requires-Dist", [])
    base = {
        re.split(r"[<>=\[ ]", requirement)[0]
        for requirement in needs
        if "extra ==" not in requirement
    }
    assert base == {"azure-servicebus", "certifi", "msgspec", "opentelemetry-api"}
    extras = set(about.get_all("Provides-Extra", []))
    assert {"functions", "telemetry", "cli", "desk", "testing"} <= extras


def test_the_version_is_the_same_everywhere() -> None:
    """`pyproject.toml` is the place; the others are held to it."""
    version = project(".")["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert project("devstack")["project"]["version"] == version
    assert f"scheduler-agent-supervisor@{version}\n" in (ROOT / "azure.yaml").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+?),? ", changes, re.MULTILINE)[0] == version


def test_what_is_deployed_has_the_extras_of_the_function_app() -> None:
    """requirements.txt is made of the extras that an app of `sas new` asks for, too."""
    extras = project(".")["project"]["optional-dependencies"]
    pinned = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    for name in ("functions", "telemetry"):
        for needed in extras[name]:
            assert f"\n{re.split('[<>=]', needed)[0]}==" in f"\n{pinned}"
    requirements = (ROOT / "template" / "requirements.in").read_text(encoding="utf-8")
    assert "scheduler-agent-supervisor[functions,telemetry]==" in requirements
