"""The zip that is deployed: what it has, what is refused. pip runs; the wheels are made here."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from zipfile import ZipFile

import pytest

from sas.deploy.azd import DeploymentRefusedError
from sas.deploy.package import RUNTIME, SITE, package
from sas.deploy.smoke import packaged
from tests.forked import Said, sas_said

FILES = {
    "function_app.py": "app = 1",
    "host.json": "{}",
    ".funcignore": "# not deployed\n.*\ntests\nwheels\ndocs/drafts/\n*.zip\n",
    ".env": "KEY=secret",
    "orders/__init__.py": "",
    "orders/__pycache__/x.pyc": "",
    "orders/tests/test_orders.py": "",
    "docs/drafts/a.md": "",
    "docs/a.md": "",
}
LINUX = "cp313-cp313-manylinux_2_28_x86_64"


class Project:
    """A project in the current directory. ``pins`` are the lines of its requirements.txt."""

    def __init__(self) -> None:
        self.pins: list[str] = []
        for name, text in FILES.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)
        Path("wheels").mkdir()

    def wheel(self, name: str, *, requires: str = "", tag: str = "py3-none-any") -> str:
        """Make a wheel; return the line that pins it."""
        module = name.replace("-", "_")
        path = Path("wheels") / f"{module}-1.3.0-{tag}.whl"
        info = f"{module}-1.3.0.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.3.0\n"
        with ZipFile(path, "w") as archive:
            archive.writestr(f"{module}/__init__.py", f"tag = {tag!r}")
            archive.writestr(f"{module}-1.3.0.data/purelib/{module}/more.py", "")
            archive.writestr(f"{module}-1.3.0.data/scripts/{module}", "#!python")
            archive.writestr(f"{info}/METADATA", metadata + requires)
            archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
            archive.writestr(f"{info}/RECORD", "")
        return f"file:{path}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}"

    def package(self, name: str = "app.zip") -> Path:
        """Make the zip."""
        Path("requirements.txt").write_text("\n".join(self.pins) + "\n")
        package(Path(name), ["submission", "agent_pay"], lambda done, total: None)
        return Path(name)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    project = Project()
    project.pins = ["# what is deployed", project.wheel(RUNTIME)]
    return project


def test_the_zip_has_the_app_and_its_packages_where_the_worker_looks(project: Project) -> None:
    """The packages are those of Linux and Python 3.13, whatever runs this."""
    optional = "Requires-Dist: absent; extra == 'x'\n"
    parts = project.wheel("parts", tag=LINUX, requires=optional)
    markers = {
        "old": "python_full_version < '3.13'",
        "new": "python_full_version >= '3.13'",
        "windows": "sys_platform == 'win32'",
    }
    project.pins += [f"{parts} ; sys_platform == 'linux'"]
    project.pins += [f"{project.wheel(name)} ; {marker}" for name, marker in markers.items()]
    with ZipFile(project.package()) as archive:
        names = archive.namelist()
    assert [name for name in names if not name.startswith(".python_packages/")] == [
        *("docs/a.md", "function_app.py", "functions.txt", "host.json", "orders/__init__.py"),
        "requirements.txt",
    ]
    assert packaged(Path("app.zip")) == {"agent_pay", "submission"}
    assert [name for name in names if name.startswith(f"{SITE}/parts")] == [
        f"{SITE}/parts-1.3.0.dist-info/METADATA",
        f"{SITE}/parts-1.3.0.dist-info/RECORD",
        f"{SITE}/parts-1.3.0.dist-info/WHEEL",
        f"{SITE}/parts/__init__.py",
        f"{SITE}/parts/more.py",
    ]
    assert [name for name in markers if f"{SITE}/{name}/__init__.py" in names] == ["new"]
    os.utime("host.json", (0, 0))
    assert project.package("later.zip").read_bytes() == Path("app.zip").read_bytes()


def test_a_pin_is_refused_that_pip_could_fill_otherwise_elsewhere(project: Project) -> None:
    absent = "Requires-Dist: absent>=2; python_version > '3.12'\n"
    pins = project.pins
    for pin, words in (
        ("msgspec==0.22.0", "no hash for 'msgspec==0.22.0'"),
        (project.wheel("windows", tag="cp313-cp313-win_amd64"), "is not a supported wheel"),
        (project.wheel("parts", requires=absent), "absent"),
    ):
        project.pins = [*pins, pin]
        with pytest.raises(DeploymentRefusedError, match=words):
            project.package()
    project.pins = pins
    project.wheel(RUNTIME, requires="Requires-Python: >=3\n")  # another content than was pinned
    with pytest.raises(DeploymentRefusedError, match="DO NOT MATCH THE HASHES"):
        project.package()
    assert not Path("app.zip").exists()


def test_an_app_is_refused_that_would_run_on_the_runtime_of_the_image(project: Project) -> None:
    project.pins = [project.wheel("parts"), project.wheel(RUNTIME) + " ; python_version < '3.13'"]
    with pytest.raises(DeploymentRefusedError, match=f"does not pin {RUNTIME}"):
        project.package()


def test_a_folder_that_is_no_function_app_or_takes_files_back_in_is_refused(
    project: Project,
) -> None:
    Path(".funcignore").write_text("tests\n!tests/kept.py\n")
    with pytest.raises(DeploymentRefusedError, match="a line with !"):
        project.package()
    for name in (".funcignore", "host.json"):
        Path(name).unlink()
        with pytest.raises(DeploymentRefusedError, match=f"{name} is missing here"):
            project.package()


def test_the_command_says_how_large_the_zip_is_and_each_line_of_a_refusal(project: Project) -> None:
    def sas() -> Said:
        return sas_said(["azd", "package"], os.environ, cwd=Path.cwd())

    Path("requirements.txt").write_text("\n".join(project.pins) + "\n")
    assert sas().out == "build/app.zip has 0 functions and 1 package: 0.0 MB\n"
    Path("function_app.py").write_text("import absent\n")
    assert "function_app.py cannot be loaded: No module named 'absent'" in sas().err
    Path("function_app.py").write_text("")
    Path("requirements.txt").write_text("msgspec\n")
    refused = sas()
    assert refused.code == 1
    assert refused.err.splitlines()[-1].startswith("    uv pip compile requirements.in")
