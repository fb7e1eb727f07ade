"""The pytest plugin: the fixture ``saga``, and its story in the report of a test that fails.

It is loaded wherever the package is installed, so it imports the kit only where a test uses it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sas.testing.kit import Kit

LINES_MAX = 400
"""Most lines of a story that a report shows: the last ones."""
_kit = pytest.StashKey["Kit"]()


@pytest.fixture
def saga(request: pytest.FixtureRequest) -> Kit:
    """Plays orders through the real engine in virtual time: see ``sas.testing.Kit``."""
    from sas.testing.kit import Kit  # noqa: PLC0415  slow to import

    kit = Kit(request.config.rootpath)
    request.node.stash[_kit] = kit
    return kit


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the story of the test's orders to the report of a failure."""
    report = yield
    kit = item.stash.get(_kit, None)
    if kit is not None and report.failed and kit.story:
        lines = kit.story.splitlines()
        report.sections.append(("story of the orders", "\n".join(lines[-LINES_MAX:])))
    return report
