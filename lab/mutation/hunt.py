"""Hunts mutants with tests, each in a process forked from one that has imported everything.

A mutant within a function takes the place of the function's code. What runs at import needs a
process that imports the mutant: it is forked from one that has imported third-party packages.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.machinery
import json
import os
import re
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutation"
LAYERS = ("tests/unit", "tests/contract", "tests/simulation")
CODE = ("sas/domain", "sas/engine", "sas/actors", "sas/features")
CPU_MAX_S = 10
"""The tests of a mutant in each layer are cut where they took longer without it, in CPU time."""
FILES_FIRST, FILES_THEN = 4, 40
"""So many of the nearest files look for what runs at import: their imports take long."""
_monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12 and newer
_TOOL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeMutant:
    """One change that mutmut made (see ``make.py``)."""

    path: str
    line: int
    function: str | None
    at: int
    length: int
    text: str
    change: str

    @property
    def key(self) -> str:
        """What names it although lines move."""
        return f"{self.path} {self.function}: {self.change}"

    def source(self) -> str:
        """Return the changed file."""
        old = (ROOT / self.path).read_bytes()
        new = old[: self.at] + self.text.encode() + old[self.at + self.length :]
        return new.decode()

    def compiled(self) -> CodeType:
        """Return the changed file as code."""
        return compile(self.source(), str(ROOT / self.path), "exec", dont_inherit=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTest:
    """What a test took and touched without any mutant: lines of each file."""

    name: str
    cpu_s: float
    lines: dict[str, list[int]] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The path of its file."""
        return self.name.partition("::")[0]

    @property
    def layer(self) -> int:
        """The place of its layer in ``LAYERS``."""
        return next(at for at, layer in enumerate(LAYERS) if self.name.startswith(layer))


def forked(works: Sequence[Callable[[], str]], jobs: int) -> Iterator[tuple[int, str]]:
    """Run functions in processes of their own. Yield the place of each and what it returned.

    What a signal ended (a mutant that never ends) returned the signal's name.

    Raises:
        RuntimeError: a function raised.
    """
    running: dict[int, tuple[int, int]] = {}
    for place, work in enumerate([*works, *[None] * jobs]):
        if len(running) == jobs or (work is None and running):
            pid, status = os.wait()
            done, pipe = running.pop(pid)
            with os.fdopen(pipe) as stream:
                result = stream.read()
            if os.WIFEXITED(status) and os.WEXITSTATUS(status):
                raise RuntimeError(result)
            yield done, signal.Signals(os.WTERMSIG(status)).name if status else result
        if work is None:
            continue
        reading, writing = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            os.close(writing)
            running[pid] = place, reading
            continue
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for stream_number in (0, 1, 2):
                os.dup2(null, stream_number)
            os.write(writing, work().encode()[-60_000:])
            os._exit(0)
        except BaseException:  # noqa: BLE001  the process must end here
            os.write(writing, traceback.format_exc().encode()[-60_000:])
            os._exit(1)


class Loop:
    """A pytest plugin: collects as pytest does, and then lets somebody else run the tests."""

    def __init__(self, work: Callable[[list[pytest.Item]], None]) -> None:
        self._work = work
        self._failed: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Hand the tests over, if all of them could be imported."""
        if not session.testsfailed:
            self._work(session.items)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails."""
        if report.failed:
            self._failed = report.nodeid

    def passes(self, item: pytest.Item, following: pytest.Item | None) -> bool:
        """Run a test."""
        self._failed = None
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        return self._failed is None

    def first_failing(self, items: Sequence[pytest.Item], tests: dict[str, MeasuredTest]) -> str:
        """Return the name of the first test that fails; empty if all pass."""
        for item, following in zip(items, [*items, None][1:], strict=True):
            limit(tests[item.nodeid].cpu_s)
            if not self.passes(item, following):
                return item.nodeid
        return ""

    def collect(self, paths: Sequence[str]) -> None:
        """Import tests and run the work on them."""
        options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0"]
        options.append("--hypothesis-profile=mutation")
        pytest.main([*options, "--no-header", "--no-summary", *paths], plugins=[self])


def limit(cpu_s: float) -> None:
    """Let this process end if a test takes far longer than it did, or waits for ever."""
    signal.setitimer(signal.ITIMER_PROF, 10 + 10 * cpu_s)
    signal.setitimer(signal.ITIMER_REAL, 60 + 30 * cpu_s)


class Bench:
    """The tests in memory, what they touch, and the functions that a mutant can replace."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._at_import: set[tuple[str, str]] = set()
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        self._loop = Loop(self._begin)
        self._items: dict[str, pytest.Item] = {}
        self.tests: dict[str, MeasuredTest] = {}

    def run(self, then: Callable[[Bench], None]) -> None:
        """Import the tests, measure those that changed, and go on with ``then``."""
        self._then = then
        _monitoring.use_tool_id(_TOOL, "mutation")
        _monitoring.register_callback(_TOOL, _monitoring.events.PY_START, self._called)
        _monitoring.set_events(_TOOL, _monitoring.events.PY_START)
        self._loop.collect(LAYERS)

    def _called(self, code: CodeType, _: int) -> Any:
        if path := _path(code):
            self._at_import.add((path, code.co_qualname))
        return _monitoring.DISABLE

    def _begin(self, items: list[pytest.Item]) -> None:
        _monitoring.set_events(_TOOL, 0)
        gc.collect()
        for function in gc.get_objects():
            if isinstance(function, FunctionType) and (path := _path(function.__code__)):
                code = function.__code__
                self._functions[path, code.co_qualname, code.co_firstlineno].append(function)
        files = defaultdict(list)
        for item in items:
            if "tests/contract" not in item.nodeid or "memory" in item.nodeid:
                files[item.nodeid.partition("::")[0]].append(item)
        gc.freeze()
        self._measure(files)
        self._items = {item.nodeid: item for item in items}
        self._then(self)

    def _measure(self, files: dict[str, list[pytest.Item]]) -> None:
        base = digest(
            sorted(
                path
                for top in ("sas", "orders", "samples", "tests")
                for path in (ROOT / top).rglob("*.py")
                if not path.name.startswith("test_")
            )
        )
        names = {file: BUILD / "tests" / f"{digest([ROOT / file])}-{base}.json" for file in files}
        missing = [file for file in files if not names[file].exists()]
        (BUILD / "tests").mkdir(parents=True, exist_ok=True)
        works = [lambda file=file: self._measured(files[file], names[file]) for file in missing]
        for number, (place, result) in enumerate(forked(works, self.jobs), 1):
            note = f": {result}" if result else ""
            print(f"measured {number} of {len(missing)} {missing[place]}{note}", flush=True)
        for name in names.values():
            if name.exists():
                tests = [MeasuredTest(**test) for test in json.loads(name.read_text())]
                self.tests |= {test.name: test for test in tests}

    def _measured(self, items: list[pytest.Item], target: Path) -> str:
        touched: dict[str, set[int]] = defaultdict(set)
        processes: list[str] = []
        for functions in self._functions.values():
            for code in _codes(functions[0].__code__):
                _monitoring.set_local_events(_TOOL, code, _monitoring.events.LINE)

        def on_line(code: CodeType, line: int) -> Any:
            touched[_path(code)].add(line)
            return _monitoring.DISABLE

        def on_audit(event: str, _: object) -> None:
            if event in {"subprocess.Popen", "os.fork", "os.posix_spawn"}:
                processes.append(event)

        _monitoring.register_callback(_TOOL, _monitoring.events.LINE, on_line)
        sys.addaudithook(on_audit)
        tests, failing = [], []
        for item, following in zip(items, [*items, None][1:], strict=True):
            begin = time.process_time()
            touched.clear()
            processes.clear()
            _monitoring.restart_events()
            if not self._loop.passes(item, following):
                failing.append(item.nodeid)
            elif not processes:
                lines = {path: sorted(numbers) for path, numbers in touched.items()}
                cpu_s = round(time.process_time() - begin, 4)
                tests.append(MeasuredTest(name=item.nodeid, cpu_s=cpu_s, lines=lines))
        target.write_text(json.dumps([asdict(test) for test in tests]))
        return f"{len(failing)} FAIL without a mutant: {failing[:3]}" if failing else ""

    def covering(self, mutant: MadeMutant) -> list[MeasuredTest]:
        """Return the tests that may find a mutant, the nearest and shortest first.

        At import a mutant may change what its users do. Their tests come last; first of these are
        files that import its module themselves, then those that touch most lines of users.
        """
        tests = [
            test for test in self.tests.values() if mutant.line in test.lines.get(mutant.path, ())
        ]
        tests.sort(key=lambda test: (test.layer, test.cpu_s))
        if self.is_at_import(mutant):
            users = {mutant.path, *_users(mutant.path)}
            others = [test for test in self.tests.values() if users & {test.file, *test.lines}]
            touched: dict[str, set[tuple[str, int]]] = defaultdict(set)
            for test in others:
                for path in users & test.lines.keys():
                    touched[test.file] |= {(path, line) for line in test.lines[path]}
            others.sort(
                key=lambda test: (
                    test.layer,
                    test.file not in users,
                    -len(touched[test.file]),
                    test.cpu_s,
                )
            )
            tests = [*{test.name: test for test in [*tests, *others]}.values()]
        spent_s: dict[int, float] = defaultdict(float)
        chosen = []
        for test in tests:
            spent_s[test.layer] += test.cpu_s
            if spent_s[test.layer] <= CPU_MAX_S:
                chosen.append(test)
        return chosen

    def is_at_import(self, mutant: MadeMutant) -> bool:
        """Whether a mutant runs while modules are imported."""
        return not mutant.function or (mutant.path, mutant.function) in self._at_import

    def replaced(self, mutant: MadeMutant) -> tuple[list[FunctionType], CodeType] | None:
        """Return the functions that a mutant changes, and their new code; None at import."""
        if not mutant.function:
            return None
        codes = [
            code
            for code in _codes(mutant.compiled())
            if code.co_qualname == mutant.function and code.co_firstlineno <= mutant.line
        ]
        code = max(codes, key=lambda code: code.co_firstlineno)
        functions = self._functions[mutant.path, mutant.function, code.co_firstlineno]
        fits = all(function.__code__.co_freevars == code.co_freevars for function in functions)
        return (functions, code) if functions and fits else None

    def hunted(self, mutant: MadeMutant) -> str:
        """Return the test that finds a mutant of a function; empty if none does.

        This process must be a forked one.
        """
        replaced = self.replaced(mutant)
        assert replaced is not None
        functions, code = replaced
        for function in functions:
            function.__code__ = code
        tests = self.covering(mutant)
        return self._loop.first_failing([self._items[test.name] for test in tests], self.tests)


def nearest(tests: Sequence[MeasuredTest], files_max: int) -> list[MeasuredTest]:
    """Return the tests of the first files alone."""
    files = [*dict.fromkeys(test.file for test in tests)][:files_max]
    return [test for test in tests if test.file in files]


def hunted_at_import(mutant: MadeMutant, tests: Sequence[MeasuredTest]) -> str:
    """Import a mutant, and return the test that finds it; empty if none does.

    This process must be a forked one that has not imported ``sas``.
    """
    order = {test.name: number for number, test in enumerate(tests)}
    finder = ["import"]

    def run(items: list[pytest.Item]) -> None:
        chosen = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )
        finder[0] = loop.first_failing(chosen, {test.name: test for test in tests})

    def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        if loader.path == str(ROOT / mutant.path):
            return mutant.compiled()
        return as_it_was(loader, name)

    as_it_was = importlib.machinery.SourceFileLoader.get_code
    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    limit(30)
    loop = Loop(run)
    loop.collect(sorted({test.file for test in tests}))
    return finder[0]


def _users(path: str) -> list[str]:
    module = path.removesuffix(".py").replace("/", ".")
    files = [file for top in (*CODE, "tests") for file in (ROOT / top).rglob("*.py")]
    line = re.compile(rf"^from {re.escape(module)} import", re.MULTILINE)
    return [str(file.relative_to(ROOT)) for file in files if line.search(file.read_text())]


def _path(code: CodeType) -> str:
    """Return the path of code that mutants are made of; empty for other code."""
    path = code.co_filename.removeprefix(f"{ROOT}/")
    return path if path.startswith(CODE) else ""


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def digest(paths: Sequence[Path]) -> str:
    """Return what changes with the content of files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
