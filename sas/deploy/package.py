"""The zip that is deployed: ``sas azd package``.

Azure does not build it, so it has the packages too (Azure calls that a local build):

1. requirements.txt is read for Linux, x86-64 and CPython 3.13, whatever runs this. pip decides by
   the Python that runs it which lines apply (pip #11010), so the lines are chosen here.
2. pip downloads the wheels of these lines, each with a hash, and nothing else.
3. The wheels are unpacked into the zip, as Core Tools do it, and not installed: what pip installs
   has paths of this machine in it.
4. The files of the project that .funcignore leaves are added.

The same files give the same zip. So the zip that staging has had is what production gets, and an
earlier zip is how a deployment is rolled back.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from email.parser import BytesHeaderParser
from fnmatch import fnmatchcase
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from sas.deploy.azd import DeploymentRefusedError

PACKAGE = Path("build/app.zip")
REQUIREMENTS = "requirements.txt"
IGNORED = ".funcignore"
OF_AN_APP = ("function_app.py", "host.json", REQUIREMENTS, IGNORED)
FUNCTIONS = "functions.txt"
"""In the zip: the name of each function, on a line."""
SITE = ".python_packages/lib/site-packages"
"""Where the worker looks for packages, below the app."""
RUNTIME = "azure-functions-runtime"
"""Without it the image's own version runs, and some of these fail every function (worker #1881)."""
PYTHON = "3.13"
GLIBC_MINOR_MAX = 28
"""A wheel that needs a newer glibc than 2.28 is not taken; the image of Functions is newer."""
TARGET = {
    "extra": "",
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": f"{PYTHON}.0",
    "python_version": PYTHON,
    "sys_platform": "linux",
}
"""What markers such as ``python_version < "3.13"`` are compared with."""
LOCK = (
    f"uv pip compile requirements.in -o {REQUIREMENTS} --universal --python-version 3.11 "
    "--generate-hashes"
)
_HASHED = re.compile(r"\s--hash=|#sha256=")
_MADE_AT = (1980, 1, 1, 0, 0, 0)
"""The time of each file in the zip: the first that a zip can have."""
Told = Callable[[int, int], None]
"""Is called with how many packages have been downloaded, and how many there are."""


def package(zip_path: Path, functions: Iterable[str], tell: Told) -> int:
    """Write the zip of the project in this directory; return the number of its packages.

    ``functions`` are the names of its functions. The zip keeps them for the test after a
    deployment.

    Raises:
        DeploymentRefusedError: a file is missing, a package has no hash, no wheel for Azure, or a
            requirement that requirements.txt does not name.
    """
    for name in OF_AN_APP:
        if not Path(name).is_file():
            raise DeploymentRefusedError(f"{name} is missing here: run this in a project's folder")
    lines = _lines(Path(REQUIREMENTS).read_text(encoding="utf-8"))
    zip_path.parent.mkdir(parents=True, exist_ok=True)
    part = zip_path.with_name(f"{zip_path.name}.part")
    contents = {path.as_posix(): path.read_bytes() for path in _project_files({zip_path, part})}
    contents[FUNCTIONS] = "".join(f"{name}\n" for name in sorted(functions)).encode()
    with tempfile.TemporaryDirectory() as folder:
        wheels = _download(lines, Path(folder), tell)
        _check_complete(wheels)
        for wheel in wheels:
            contents |= {f"{SITE}/{name}": content for name, content in _unpacked(wheel)}
    with ZipFile(part, "w") as archive:
        for name, content in sorted(contents.items()):
            _add(archive, name, content)
    part.replace(zip_path)
    return len(wheels)


def _lines(text: str) -> list[str]:
    """Return the requirements that apply in Azure, and the options of pip such as --index-url."""
    lines = []
    for text_line in re.sub(r"\\\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*", "", text_line).strip()
        if line.startswith("-"):
            lines.append(line)
            continue
        requirement, _, condition = line.partition(";")
        marker, *hashes = re.split(r"\s(?=--hash=)", condition)
        # The marker has been decided on here, and pip must not decide again.
        if requirement and (not marker.strip() or Marker(marker).evaluate(TARGET)):
            lines.append(" ".join([requirement.strip(), *hashes]))
    bare = [line for line in lines if not line.startswith("--") and not _HASHED.search(line)]
    if bare:
        raise DeploymentRefusedError(
            f"{REQUIREMENTS} has no hash for {bare[0]!r}: pin all that is deployed, with hashes "
            f"(uv is a package of PyPI):\n    {LOCK}"
        )
    return lines


def _download(lines: list[str], folder: Path, tell: Told) -> list[Path]:
    """Download the wheels into the folder; return them in the order of their names."""
    (folder / REQUIREMENTS).write_text("\n".join(lines), encoding="utf-8")
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC_MINOR_MAX, 4, -1)]
    abis = (f"cp{PYTHON.replace('.', '')}", "abi3", "none")
    command = [
        *(sys.executable, "-P", "-m", "pip", "download", "--disable-pip-version-check"),
        *("--require-hashes", "--no-deps", "--only-binary", ":all:", "--progress-bar", "off"),
        *("--implementation", "cp", "--python-version", PYTHON),
        *(word for abi in abis for word in ("--abi", abi)),
        *(word for name in (*platforms, "manylinux2014_x86_64") for word in ("--platform", name)),
        *("--requirement", str(folder / REQUIREMENTS), "--dest", str(folder)),
    ]
    total = sum(not line.startswith("-") for line in lines)
    tell(0, total)
    pip = subprocess.Popen(  # noqa: S603  # no shell
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with pip:
        printed = []
        for line in pip.stdout or ():
            printed.append(line)
            tell(sum(text.startswith(("Collecting ", "Processing ")) for text in printed), total)
    if pip.returncode:
        errors = [line for line in printed if line.startswith(("ERROR", "/", " "))]
        raise DeploymentRefusedError(
            f"pip cannot download what {REQUIREMENTS} pins, for Linux and Python {PYTHON}:\n"
            + "".join(errors or printed).rstrip()
        )
    return sorted(folder.glob("*.whl"))


def _check_complete(wheels: list[Path]) -> None:
    """Refuse a requirement of a package that was not downloaded, because nothing adds it later."""
    present = {parse_wheel_filename(wheel.name)[0] for wheel in wheels}
    if RUNTIME not in present:
        raise DeploymentRefusedError(
            f"{REQUIREMENTS} does not pin {RUNTIME} for Python {PYTHON}, so the version of Azure's "
            f"image would run the functions. Add {RUNTIME}==1.3.0, then:\n    {LOCK}"
        )
    for wheel in wheels:
        for requirement in _requirements(wheel):
            if canonicalize_name(requirement.name) not in present:
                raise DeploymentRefusedError(
                    f"{wheel.name} requires {requirement.name}, which {REQUIREMENTS} does not pin. "
                    f"Pin all that is deployed, with hashes:\n    {LOCK}"
                )


def _requirements(wheel: Path) -> Iterator[Requirement]:
    with ZipFile(wheel) as archive:
        path = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        headers = BytesHeaderParser().parsebytes(archive.read(path))
    for text in headers.get_all("Requires-Dist", ()):
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(TARGET):
            yield requirement


def _unpacked(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the content of what a wheel has in site-packages; it needs no scripts."""
    with ZipFile(wheel) as archive:
        for info in archive.infolist():
            name = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", info.filename)
            is_other = ".data/" in name.partition("/")[0] + "/"
            if not info.is_dir() and not is_other and "__pycache__/" not in name:
                yield name, archive.read(info)


def _project_files(others: set[Path]) -> Iterator[Path]:
    """Yield the files of the project that .funcignore leaves, by paths from its folder."""
    text = Path(IGNORED).read_text(encoding="utf-8")
    patterns = [line.strip() for line in text.splitlines() if line.strip()]
    ignored = [pattern.rstrip("/") for pattern in patterns if not pattern.startswith("#")]
    if any(pattern.startswith("!") for pattern in ignored):
        raise DeploymentRefusedError(f"{IGNORED} has a line with !: name what is left out instead")
    for folder, folders, names in os.walk("."):
        here = Path(folder)
        folders[:] = [name for name in folders if not _ignored(here / name, ignored)]
        paths = (here / name for name in names)
        yield from (path for path in paths if path not in others and not _ignored(path, ignored))


def _ignored(path: Path, patterns: list[str]) -> bool:
    """Return whether a pattern has the path, or its last part if the pattern has no slash."""
    if path.name == "__pycache__":
        return True
    return any(
        fnmatchcase(path.as_posix() if "/" in pattern else path.name, pattern.lstrip("/"))
        for pattern in patterns
    )


def _add(archive: ZipFile, name: str, content: bytes) -> None:
    info = ZipInfo(name, _MADE_AT)
    info.create_system, info.external_attr = 3, 0o644 << 16  # as on Linux
    info.compress_type = ZIP_DEFLATED
    archive.writestr(info, content)
