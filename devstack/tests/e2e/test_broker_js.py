"""Microsoft's JavaScript client against the broker: a second real peer with other habits."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devstack.servicebus import QueueProperties
from devstack.tests.broker_runners import BrokerThread

FOLDER = Path(__file__).parent / "js"
SCENARIOS = (
    "arrives_as_sent",
    "batch",
    "abandon_defer_dead_letter",
    "schedule_cancel_peek",
    "sessions",
    "subscribe",
    "unknown_queue",
)
QUEUES = {
    **{f"js-{name}": QueueProperties() for name in ("plain", "batch", "verbs", "later", "stream")},
    "js-lanes": QueueProperties(requires_session=True),
}


def installed() -> str:
    """Install the client from the lock file; return the path of node. Skip if there is no node."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None:
        pytest.skip("node was not found: install Node 20 or newer")
    if not (FOLDER / "node_modules/@azure/service-bus").is_dir():
        if npm is None:
            pytest.skip("npm was not found and @azure/service-bus is not installed")
        done = subprocess.run(
            [npm, "ci", "--no-fund", "--no-audit", "--loglevel=error"],
            cwd=FOLDER,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"npm could not install @azure/service-bus: {done.stderr[-300:]}")
    return node


def run(node: str, connection_string: str, *scenarios: str) -> dict[str, str]:
    done = subprocess.run(
        [node, "scenarios.mjs", connection_string, *scenarios],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, str]]:
    node = installed()
    with BrokerThread(QUEUES) as broker:
        yield run(node, broker.connection_string, *SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_javascript_client_is_served(results: dict[str, str], scenario: str) -> None:
    assert results[scenario] == "ok"
