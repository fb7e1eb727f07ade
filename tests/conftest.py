"""How every test here is run: in which order, and how Hypothesis makes its examples."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from devstack.tests.sdk_kit import hurried
from tests.ports import free_port

WAITING = ("e2e", "orders", "integration")
"""The layers whose tests wait for processes and locks most of their time; the others compute."""
LONG_FILES = (
    "test_new_project.py",
    "test_kills.py",
    "test_kill_9.py",
    "test_demo.py",
    "test_operator_cli.py",
    "test_functions_longsteps.py",
    "test_host_processes.py",
    "test_host_service_bus.py",
    "test_host_other_apps.py",
    "test_functions_faults.py",
    "test_functions_each.py",
    "test_devstack_stack.py",
    "test_devstack_up.py",
    "test_client_command.py",
    "test_outages.py",
    "test_domain_protocol.py",
    "test_fuzz.py",
    "test_rehearsal.py",
    "test_sim.py",
    "test_desk_browser.py",
)
"""One file runs in one process. These would be left over at the end, so they begin first."""

# No deadline and no check for slow examples: both fail on a busy machine.
settings.register_profile(
    "short",
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(  # a push fails by what it changed; a first seed draws new examples
    "long",
    settings.get_profile("short"),
    max_examples=250,
    derandomize="SAS_FIRST_SEED" not in os.environ,
)
settings.register_profile(  # a mutant is found: nobody reads the shortest sequence that finds it
    "mutation", settings.get_profile("short"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("short")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts a background job so, and the processes that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix files that wait with files that compute, so that both cores are busy all the time."""
    paths = dict.fromkeys(item.path for item in items)
    files = sorted(paths, key=lambda path: path.name not in LONG_FILES)
    waiting = [path for path in files if not set(WAITING).isdisjoint(path.parts)]
    computing = [path for path in files if path not in set(waiting)]
    place = {
        path: number / len(kind)
        for kind in (waiting, computing)
        for number, path in enumerate(kind)
    }
    items.sort(key=lambda item: place[item.path])


def pytest_sessionfinish() -> None:
    """Stop the servers that several files shared."""
    rigs = sys.modules.get("tests.functions_rig")
    if rigs is not None:
        rigs.SERVERS.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send what models explored to the process that prints."""
    report = yield
    model = sys.modules.get("tests.simulation.domain_model_check")
    if model is not None and model.EXPLORED:
        report.user_properties += [("explored", scope) for scope in model.EXPLORED]
        model.EXPLORED.clear()
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print how much the exhaustive models explored; each scope where long tests run."""
    reports = [report for several in terminalreporter.stats.values() for report in several]
    named = [pair for report in reports for pair in getattr(report, "user_properties", ())]
    scopes = {scope: states for name, (scope, states) in named if name == "explored"}
    if not scopes:
        return
    if "long" in config.getoption("markexpr").replace("not long", ""):
        from tests.simulation.domain_model_check import explored_line  # noqa: PLC0415  for few runs

        for scope, states in sorted(scopes.items()):
            terminalreporter.write_line(explored_line(scope, states))
    summary = f"{len(scopes):,} scopes explored whole, {sum(scopes.values()):,} states"
    terminalreporter.write_line(summary)


@pytest.fixture(autouse=True)
def environment_is_left_as_it_was() -> Iterator[None]:
    """Fail the test that leaves a variable behind, and not a later one that reads it."""
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    changes = {name for name, _ in before.items() ^ after.items()} - {"PYTEST_CURRENT_TEST"}
    for name in changes:
        os.environ.pop(name, None)
        os.environ.update({name: before[name]} if name in before else {})
    assert not changes, f"the test left in the environment: {', '.join(sorted(changes))}"


@pytest.fixture
def unused_tcp_port() -> int:
    """A free port, in place of pytest-asyncio's, which an outgoing connection may take."""
    return free_port()


@pytest.fixture(scope="module")
def short_pauses() -> Iterator[None]:
    """Shorten the pauses of Azure's SDK in this module (``devstack.tests.sdk_kit``)."""
    with hurried():
        yield


@pytest.fixture(scope="module")
def collect_leftovers() -> Iterator[None]:
    """Collect what clients of the SDK left open, before the next module begins."""
    yield
    gc.collect()
