"""Run Microsoft's own live tests of azure-servicebus against the broker, and print the results.

    python -m devstack.tests.sdk [--shards 10] [--only WORDS] [--report FILE]

The command downloads the source distribution with pip (into .devstack/) and starts one broker. It
runs the queue and session tests, sync and async, through shim.py. Most of them sleep for a minute
until a lock ends, so they run in several pytest processes. deselected.txt lists the tests that are
left out, expected.txt the known failures, each with its reason. Some tests race the SDK's own
timers. So a test with an unknown failure runs once more, alone, and the table says which tests
passed only then.

The exit code is 0 if at least 97 % of the counted tests passed and every failure is a known one. It
is 1 if not, and 2 if the tests could not run.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from devstack.tests.broker_runners import BrokerProcess, start_broker
from devstack.tests.sdk.report import (
    VERSION,
    Lists,
    Result,
    problems,
    second_try,
    table,
    unexpected,
)

ROOT = Path(__file__).resolve().parents[3]

FILES = (
    "test_queues.py",
    "test_sessions.py",
    "test_list_sessions.py",
    "async_tests/test_queues_async.py",
    "async_tests/test_sessions_async.py",
    "async_tests/test_list_sessions_async.py",
)
PYTEST = ("-m", "pytest", "-p", "devstack.tests.sdk.shim", "--noconftest", "-q")
OPTIONS = (
    "-p",
    "no:cacheprovider",
    "-o",
    "asyncio_mode=auto",
    "-o",
    "asyncio_default_fixture_loop_scope=function",
)


def source_tests() -> Path:
    """Return the folder of Microsoft's tests. Download it first if it is missing."""
    home = ROOT / ".devstack" / "sdk-tests"
    tests = home / f"azure_servicebus-{VERSION}" / "tests"
    if not tests.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        requirement = f"azure-servicebus=={VERSION}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command = [*pip, "--no-binary", "azure-servicebus", "--dest", str(home), requirement]
        subprocess.run(command, check=True)
        with tarfile.open(next(home.glob("azure_servicebus-*.tar.gz"))) as archive:
            archive.extractall(home, filter="data")
    return tests


def environment(broker: BrokerProcess, tests: Path) -> dict[str, str]:
    """Return the environment that tells the shim where the broker and the tests are."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SAS_SDK_BROKER": f"127.0.0.1:{broker.port}",
        "SAS_SDK_MANAGEMENT": f"127.0.0.1:{broker.management_port}",
        "SAS_SDK_CONNECTION_STRING": broker.connection_string,
        "SAS_SDK_TESTS": str(tests),
    }


def collect(tests: Path, env: dict[str, str], only: str = "") -> list[str]:
    """Return the tests that pytest finds, by the names that pytest gives them."""
    command = [sys.executable, *PYTEST, "-c", os.devnull, "--rootdir", str(tests), *OPTIONS]
    command += ["--collect-only", *FILES]
    if only:
        command += ["-k", only]
    done = subprocess.run(command, cwd=tests, env=env, capture_output=True, text=True, check=False)
    names = [line for line in done.stdout.splitlines() if "::" in line]
    if done.returncode or not names:
        raise RuntimeError(f"pytest collected nothing:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return names


def short(test: str) -> str:
    """Return a test's short name: its file and function, without folder, class and transport."""
    path, _, rest = test.partition("::")
    return f"{Path(path).name}::{rest.rpartition('::')[2].removesuffix('[pyamqp]')}"


def run_shard(
    tests: Path, env: dict[str, str], chosen: Sequence[str], report: Path
) -> "subprocess.Popen[str]":
    """Start one pytest process for some of the tests."""
    command = [sys.executable, *PYTEST, "-c", os.devnull, "--rootdir", str(tests), *OPTIONS]
    command += ["--timeout", "400", "--tb", "short", f"--junitxml={report}", *chosen]
    with report.with_suffix(".log").open("w") as log:
        return subprocess.Popen(
            command, cwd=tests, env=env, stdout=log, stderr=subprocess.STDOUT, text=True
        )


def read_report(report: Path) -> list[Result]:
    """Return the results in the report of one pytest process."""
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
        results.append(
            Result(
                name=name, outcome=outcome, reason=reason[:160], seconds=float(case.get("time", 0))
            )
        )
    return results


def run_all(
    tests: Path, env: dict[str, str], chosen: Sequence[str], folder: Path, shards: int
) -> list[Result]:
    """Run ``chosen`` in several processes; return the results sorted by name."""
    print(f"{len(chosen)} tests in {shards} processes; the longest sleep for minutes")
    parts = [chosen[n::shards] for n in range(shards) if chosen[n::shards]]
    reports = [folder / f"report{n}.xml" for n in range(len(parts))]
    processes = [
        run_shard(tests, env, part, report) for part, report in zip(parts, reports, strict=True)
    ]
    for process in processes:
        process.wait()
    results: list[Result] = []
    for report in reports:
        if not report.exists():
            raise RuntimeError(report.with_suffix(".log").read_text()[-2000:])
        results += read_report(report)
    return sorted(results, key=lambda result: result.name)


def run(shards: int, only: str, lists: Lists) -> tuple[list[Result], list[str]]:
    """Run the tests; return the results, and the problems: where they differ from the lists."""
    tests = source_tests()
    home = ROOT / ".devstack"  # not /tmp: some systems clean it up while the tests run
    with tempfile.TemporaryDirectory(dir=home) as name:
        config = Path(name, "Config.json")
        config.write_text('{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": []}]}}')
        with start_broker(config) as broker:
            env = environment(broker, tests)
            all_tests = collect(tests, env)
            candidates = collect(tests, env, only) if only else all_tests
            chosen = [test for test in candidates if short(test) not in lists.deselected]
            results = run_all(tests, env, chosen=chosen, folder=Path(name), shards=shards)
            failures = [t for t in chosen if short(t) in unexpected(results, lists)]
            if failures:
                results = second_try(
                    results, run_all(tests, env, chosen=failures, folder=Path(name), shards=1)
                )
    sentences = problems(
        results,
        lists,
        chosen=[short(test) for test in chosen],
        existing={short(test) for test in all_tests},
    )
    return results, sentences


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shards", type=int, default=10, help="pytest processes at a time")
    parser.add_argument("--only", default="", help="run only tests that match, as with pytest -k")
    parser.add_argument("--report", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    try:
        lists = Lists.read()
        results, sentences = run(max(1, options.shards), options.only, lists)
    except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        print(f"error: the tests could not be run: {error}", file=sys.stderr)
        return 2
    text = table(results, lists)
    print(text)
    if options.report:
        options.report.write_text(text + "\n")
    for sentence in sentences:
        print(f"error: {sentence}", file=sys.stderr)
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main())
