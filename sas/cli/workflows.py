"""``sas workflows check``: which orders in flight a new definition would break."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from sas.cli import finding, output, page, storage
from sas.cli.errors import UsageError
from sas.domain.fingerprint import cell_of, fingerprint
from sas.domain.model import FINISHED, Order
from sas.domain.workflow import Workflow, WorkflowError, Workflows
from sas.ports import Business, ConflictError, StateStore

SUMMARY = "check workflow definitions against the orders in flight, before a deploy"
DESCRIPTION = """\
Compare the workflows of an application with the orders in flight (under way or in Error) and with
what the table remembers of each version. An order is pinned to its version: that must still be
there, and its steps, their order, agents, undos and what follows a failure must be as they were.
Times and thresholds may change. Exit code 1 if a deploy would break something.

--record has the table remember the definitions as they are now, if no order in flight would break:
after a change to a version that only finished orders used.

  sas workflows check --app orders.workflows:workflows
"""

SOME = 3
"""Order ids named of those that use a version."""


@dataclass(slots=True)
class Finding:
    """What is known of one version of a workflow."""

    definition: Workflow | None = None
    remembered: str | None = None
    orders: int = 0
    some: list[str] = field(default_factory=list)
    other_steps: int = 0

    def count(self, order: Order) -> None:
        """Count an order in flight that uses this version."""
        self.orders += 1
        if self.orders <= SOME:
            self.some.append(order.order_id)
        names = [step.name for step in self.definition.steps] if self.definition else []
        self.other_steps += [step.name for step in order.steps] != names

    @property
    def changed(self) -> bool:
        """Whether the table remembers another definition."""
        known = fingerprint(self.definition) if self.definition else None
        return self.remembered is not None and known is not None and self.remembered != known

    def trouble(self) -> str:
        """Return what a deploy would break; nothing if nothing."""
        if self.definition is None:
            return "missing: keep this version until its orders have ended" if self.orders else ""
        if self.changed and self.orders:
            return "changed: give the new definition a version of its own and keep the old one"
        if self.other_steps:
            return "changed: orders in flight have other steps"
        return ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("action", choices=["check"])
    parser.add_argument(
        "--app",
        required=True,
        metavar="MODULE:NAME",
        help="what has the workflows: a Workflows, a Business, or a function that returns one",
    )
    parser.add_argument("--record", action="store_true", help="remember the definitions")
    storage.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check; return the exit code."""
    where = storage.read(arguments, os.environ)
    defined = load(arguments.app)
    return asyncio.run(_check(where, defined, record=arguments.record))


def load(app: str) -> Workflows:
    """Return the workflows that an application defines.

    Raises:
        UsageError: it cannot be imported, or has none.
    """
    module, _, name = app.partition(":")
    if not module or not name:
        raise UsageError(f"--app {app!r}: give MODULE:NAME, like orders.workflows:workflows")
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109  as sys.path has it
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        made: Any = getattr(import_module(module), name)
        if callable(made):
            made = made()
    except (ImportError, AttributeError, TypeError, ValueError, WorkflowError) as wrong:
        raise UsageError(f"--app {app}: {wrong}") from None
    if isinstance(made, Business):
        return made.workflows
    if isinstance(made, Workflows):
        return made
    raise UsageError(f"--app {app} is {type(made).__name__}: give a Workflows or a Business")


async def _check(where: storage.Storage, defined: Workflows, *, record: bool) -> int:
    async with storage.opened(where) as store:
        found = await _findings(store, defined)
        broken = False
        for (name, version), one in sorted(found.items()):
            trouble = one.trouble()
            broken = broken or bool(trouble) or (one.changed and not record)
            output.say(output.one_line(f"{name} version {version}: {_said(one, trouble)}"))
        if record and not broken:
            for workflow in defined:
                await _remember(store, workflow)
            output.say("recorded")
        elif record:
            output.complain("sas: nothing was recorded")
    return 1 if broken else 0


def _said(one: Finding, trouble: str) -> str:
    some = ", ".join(one.some) + (", ..." if one.orders > SOME else "")
    users = f"{page.orders(one.orders)} in flight" + (f" ({some})" if some else "")
    if trouble:
        return f"{users}; {trouble}"
    if one.changed:
        return f"{users}; changed since it was used: --record accepts that"
    if one.remembered is None:
        return f"{users}; not used yet" if not one.orders else f"{users}; not recorded yet"
    return f"{users}; as it was"


async def _findings(store: StateStore, defined: Workflows) -> Mapping[tuple[str, int], Finding]:
    """Return every version that is defined or that an order in flight uses."""
    found: dict[tuple[str, int], Finding] = defaultdict(Finding)
    for workflow in defined:
        found[workflow.name, workflow.version].definition = workflow
    async for order in _in_flight(store):
        found[order.details.workflow, order.details.version].count(order)
    for (name, version), one in found.items():
        cell = await store.read_cell(cell_of(name, version))
        one.remembered = cell.value if cell else None
    return found


async def _in_flight(store: StateStore) -> AsyncIterator[Order]:
    ids = dict.fromkeys(await finding.under_way(store))
    async for batch in finding.summaries(store, in_error=True):
        ids.update((one.order_id, None) for one in batch)
    every = list(ids)
    for start in range(0, len(every), finding.BATCH):
        for order in await finding.load_all(store, every[start : start + finding.BATCH]):
            if not order.rejected and order.process_state not in FINISHED:
                yield order


async def _remember(store: StateStore, workflow: Workflow) -> None:
    name = cell_of(workflow.name, workflow.version)
    found = await store.read_cell(name)
    known = fingerprint(workflow)
    if found is not None and found.value == known:
        return
    try:
        await store.write_cell(name, known, found.token if found else None)
    except ConflictError:
        output.complain(f"sas: {name} was written by somebody else just now: check again")
