"""Run Microsoft's own live tests of azure-servicebus against the broker, and say how they went.

    python tools/test_sdk.py [--shards 10] [--only WORDS] [--report FILE]

Downloads the source distribution with pip (into .devstack/), starts one broker, and runs the
queue and session tests, sync and async, through tests/sdk/shim.py in several pytest processes,
because most of them sleep for a minute to see a lock end. tests/sdk/deselected.txt lists what
does not count, with the reason of each; tests/sdk/expected.txt the failures that are known.

Exit code 0 where at least 97 % of what counts passed, 1 where not, 2 where it could not run.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from devstack.servicebus import BrokerProcess, start_broker  # noqa: E402 (needs the path above)

VERSION = "7.15.0"
GOAL = 0.97
FILES = (
    "test_queues.py",
    "test_sessions.py",
    "test_list_sessions.py",
    "async_tests/test_queues_async.py",
    "async_tests/test_sessions_async.py",
    "async_tests/test_list_sessions_async.py",
)
PYTEST = ("-m", "pytest", "-p", "tests.sdk.shim", "--noconftest", "-q", "-p", "no:cacheprovider")
OPTIONS = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")


@dataclass(frozen=True)
class Result:
    """How one test went: ``outcome`` is passed, failed, skipped or xfailed."""

    name: str
    outcome: str
    reason: str
    seconds: float


def listed(name: str) -> dict[str, str]:
    """Read a list of ``test name  # reason``."""
    path = ROOT / "tests/sdk" / name
    entries = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        test, _, reason = line.partition("#")
        if test.strip():
            entries[test.strip()] = reason.strip()
    return entries


def source_tests() -> Path:
    """Give the folder of Microsoft's tests, downloaded where it is not there yet."""
    home = ROOT / ".devstack" / "sdk-tests"
    tests = home / f"azure_servicebus-{VERSION}" / "tests"
    if not tests.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        wanted = f"azure-servicebus=={VERSION}"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
        ]
        command = [*pip, "--no-binary", "azure-servicebus", "--dest", str(home), wanted]
        subprocess.run(command, check=True)  # noqa: S603 (pip, with our arguments)
        with tarfile.open(next(home.glob("azure_servicebus-*.tar.gz"))) as archive:
            archive.extractall(home, filter="data")
    return tests


def environment(broker: BrokerProcess, tests: Path) -> dict[str, str]:
    """Say to the shim where everything is."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SAS_SDK_BROKER": f"127.0.0.1:{broker.port}",
        "SAS_SDK_MANAGEMENT": f"127.0.0.1:{broker.management_port}",
        "SAS_SDK_CONNECTION_STRING": broker.connection_string,
        "SAS_SDK_TESTS": str(tests),
    }


def collect(tests: Path, env: dict[str, str], only: str) -> list[str]:
    """List the tests that count."""
    command = [sys.executable, *PYTEST, "-c", os.devnull, "--rootdir", str(tests), *OPTIONS]
    command += ["--collect-only", *FILES]
    if only:
        command += ["-k", only]
    done = subprocess.run(  # noqa: S603 (pytest)
        command, cwd=tests, env=env, capture_output=True, text=True, check=False
    )
    if "error" in done.stdout.lower().rsplit("\n", 2)[-2]:
        raise RuntimeError(done.stdout[-2000:])
    left_out = listed("deselected.txt")
    found = [line for line in done.stdout.splitlines() if "::" in line]
    return [test for test in found if short(test) not in left_out]


def short(test: str) -> str:
    """Give a test's own name: its file and function, without folder, class and transport."""
    path, _, rest = test.partition("::")
    return f"{Path(path).name}::{rest.rpartition('::')[2].removesuffix('[pyamqp]')}"


def run_shard(
    tests: Path, env: dict[str, str], chosen: Sequence[str], report: Path
) -> "subprocess.Popen[str]":
    """Start one pytest on some of the tests."""
    command = [sys.executable, *PYTEST, "-c", os.devnull, "--rootdir", str(tests), *OPTIONS]
    command += ["--timeout", "400", "--tb", "short", f"--junitxml={report}", *chosen]
    with report.with_suffix(".log").open("w") as log:
        return subprocess.Popen(  # noqa: S603 (pytest)
            command, cwd=tests, env=env, stdout=log, stderr=subprocess.STDOUT, text=True
        )


def read_report(report: Path) -> list[Result]:
    """Read what one pytest wrote."""
    results = []
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 (our own pytest wrote it)
        file = case.get("classname", "").split(".")[-2] + ".py"
        name = f"{file}::{case.get('name', '').removesuffix('[pyamqp]')}"
        outcome, reason = "passed", ""
        for child in case:
            if child.tag in {"failure", "error"}:
                outcome, reason = "failed", (child.get("message") or "").split("\n")[0]
            elif child.tag == "skipped":
                expected = child.get("type") == "pytest.xfail"
                outcome, reason = ("xfailed" if expected else "skipped"), child.get("message") or ""
        results.append(Result(name, outcome, reason[:160], float(case.get("time", 0))))
    return results


def run(shards: int, only: str) -> list[Result]:
    """Run everything; give the results in the order of their names."""
    tests = source_tests()
    results: list[Result] = []
    home = ROOT / ".devstack"  # not the system's: a run takes minutes, and some clean that up
    with tempfile.TemporaryDirectory(dir=home) as name:
        folder = Path(name)
        config = folder / "Config.json"
        config.write_text('{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": []}]}}')
        with start_broker(config) as broker:
            env = environment(broker, tests)
            chosen = collect(tests, env, only)
            print(f"{len(chosen)} tests in {shards} processes; the longest sleep for minutes")
            parts = [chosen[n::shards] for n in range(shards) if chosen[n::shards]]
            reports = [folder / f"report{n}.xml" for n in range(len(parts))]
            running = [
                run_shard(tests, env, part, report)
                for part, report in zip(parts, reports, strict=True)
            ]
            for process in running:
                process.wait()
            for report in reports:
                if not report.exists():
                    raise RuntimeError(report.with_suffix(".log").read_text()[-2000:])
                results += read_report(report)
    return sorted(results, key=lambda result: result.name)


def table(results: Sequence[Result]) -> str:
    """Write the table: counts first, then every test that did not pass, with its reason."""
    known = listed("expected.txt")
    counts = {
        outcome: sum(result.outcome == outcome for result in results)
        for outcome in ("passed", "failed", "skipped", "xfailed")
    }
    counted = counts["passed"] + counts["failed"]
    left_out = str(len(listed("deselected.txt")))
    share = counts["passed"] / counted if counted else 0.0
    lines = [
        f"azure-servicebus {VERSION}, its own queue and session tests, sync and async",
        "",
        "| passed | failed | skipped | expected to fail | deselected | passed of what counts |",
        "|---|---|---|---|---|---|",
        "| " + " | ".join([*map(str, counts.values()), left_out, f"{share:.1%}"]) + " |",
        "",
        "| test | outcome | reason |",
        "|---|---|---|",
    ]
    for result in results:
        if result.outcome != "passed":
            why = known.get(result.name) or result.reason
            lines.append(f"| {result.name} | {result.outcome} | {why.replace('|', '/')} |")
    return "\n".join(lines)


def passes(results: Sequence[Result]) -> bool:
    """Whether at least the goal's share of what counts passed."""
    passed = sum(result.outcome == "passed" for result in results)
    failed = sum(result.outcome == "failed" for result in results)
    return passed > 0 and passed / (passed + failed) >= GOAL


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shards", type=int, default=10, help="pytest processes at a time")
    parser.add_argument("--only", default="", help="as pytest's -k")
    parser.add_argument("--report", type=Path, help="write the table into this file too")
    options = parser.parse_args()
    try:
        results = run(max(1, options.shards), options.only)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"error: the tests could not be run: {error}", file=sys.stderr)
        return 2
    text = table(results)
    print(text)
    if options.report:
        options.report.write_text(text + "\n")
    return 0 if passes(results) else 1


if __name__ == "__main__":
    sys.exit(main())
