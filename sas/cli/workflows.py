"""``sas workflows check``: which orders in flight a new definition would break."""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from sas.cli import arguments as args
from sas.cli import output
from sas.cli.arguments import Verb, Work
from sas.codec.record import to_line
from sas.domain.order import FINISHED, Order
from sas.domain.workflow import Workflow, Workflows
from sas.features.version_check import definition_hash, value_name
from sas.operate import finding
from sas.operate.errors import UsageError
from sas.ports import Business, StateStore

DESCRIPTION = """\
Compare the workflows of an application with the orders in flight (under way or in Error) and with
the definitions that the table remembers. An order keeps the workflow version it was submitted with.
That version must still exist, with the same steps, order, agents, undos and reaction to a failure.
Times and thresholds may change.

Exit code 0: all is well. 1: a deploy would break something, or there is no such table. 2: the app
cannot be loaded. 3: Storage does not answer.

  sas workflows check --app orders.workflows:workflows
  sas workflows check --app orders:business --json
"""

SOME = 3
"""Order ids shown for a version (--json shows all)."""
KNOWN = (ImportError, AttributeError, TypeError, ValueError)
"""Errors whose own text says enough."""


@dataclass(slots=True, kw_only=True)
class Finding:
    """What is known of one version of a workflow."""

    definition: Workflow | None = None
    remembered: str | None = None
    ids: list[str] = field(default_factory=list)
    other_steps: int = 0

    @property
    def orders(self) -> int:
        """How many orders in flight use this version."""
        return len(self.ids)

    def count(self, order: Order) -> None:
        """Count an order in flight that uses this version."""
        self.ids.append(order.order_id)
        names = [step.name for step in self.definition.steps] if self.definition else []
        self.other_steps += [step.name for step in order.steps] != names

    @property
    def changed(self) -> bool:
        """Whether the table remembers another definition."""
        known = definition_hash(self.definition) if self.definition else None
        return self.remembered is not None and known is not None and self.remembered != known

    def trouble(self) -> str:
        """Return what a deploy would break, or nothing."""
        if self.definition is None:
            return "missing: keep this version until its orders have ended" if self.orders else ""
        if self.changed:
            return "changed: give the new definition a version of its own and keep the old one"
        if self.other_steps:
            return "changed: orders in flight have other steps"
        return ""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["check"])
    parser.add_argument(
        "--app",
        required=True,
        metavar="MODULE:NAME",
        help="a Workflows, a Business, or a function that returns one",
    )
    args.add_json(parser, "JSON lines, with every order id")


def _check(arguments: argparse.Namespace) -> Work:
    return _Check(load(arguments.app), as_json=arguments.json).run


def load(app: str) -> Workflows:
    """Return the workflows that an application defines.

    Raises:
        UsageError: the application cannot be imported, or defines none.
    """
    found = made(app)
    return found.workflows if isinstance(found, Business) else found


def made(app: str) -> Workflows | Business:
    """Return what an application defines.

    Raises:
        UsageError: the application cannot be imported, or defines neither.
    """
    module, _, name = app.partition(":")
    if "/" in module or module.startswith("."):
        raise UsageError(f"--app {app!r} is a path: give a module, like orders.workflows:workflows")
    if not module or not name:
        raise UsageError(f"--app {app!r}: give MODULE:NAME, like orders.workflows:workflows")
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109  as sys.path has it
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: Any = getattr(import_module(module), name)
        if callable(found):
            found = found()
    except Exception as wrong:  # noqa: BLE001  it is the application's own code
        kind = "" if isinstance(wrong, KNOWN) else f"{type(wrong).__name__}: "
        raise UsageError(f"--app {app} cannot be loaded: {kind}{wrong}") from None
    if isinstance(found, Business | Workflows):
        return found
    raise UsageError(f"--app {app} is {type(found).__name__}: give a Workflows or a Business")


class _Check:
    """One check of what an application defines."""

    def __init__(self, defined: Workflows, *, as_json: bool) -> None:
        self._defined = defined
        self._as_json = as_json

    async def run(self, store: StateStore) -> int:
        """Check, print the findings, and return the exit code."""
        broken = False
        for (name, version), one in sorted((await self._findings(store)).items()):
            broken = broken or bool(one.trouble())
            record = _record(name, version, one)
            line = f"{name} version {version}: {_said(one, one.trouble())}"
            output.say(to_line(record) if self._as_json else output.one_line(line))
        return 1 if broken else 0

    async def _findings(self, store: StateStore) -> Mapping[tuple[str, int], Finding]:
        """Return every version that is defined or that an order in flight uses."""
        found: dict[tuple[str, int], Finding] = defaultdict(Finding)
        for workflow in self._defined:
            found[workflow.name, workflow.version].definition = workflow
        async for order in _in_flight(store):
            found[order.details.workflow, order.details.version].count(order)
        for (name, version), one in found.items():
            shared = await store.read_shared(value_name(name, version))
            one.remembered = shared.value if shared else None
        return found


def _record(name: str, version: int, one: Finding) -> dict[str, object]:
    return {
        "Workflow": name,
        "Version": version,
        "Defined": one.definition is not None,
        "Recorded": one.remembered is not None,
        "Changed": one.changed,
        "Trouble": one.trouble() or None,
        "InFlight": one.ids,
    }


def _said(one: Finding, trouble: str) -> str:
    some = ", ".join(one.ids[:SOME]) + (", ..." if one.orders > SOME else "")
    users = f"{output.orders(one.orders)} in flight" + (f" ({some})" if some else "")
    if trouble:
        return f"{users}; {trouble}"
    if one.remembered is None:
        return f"{users}; not used yet" if not one.orders else f"{users}; not recorded yet"
    return f"{users}; unchanged"


async def _in_flight(store: StateStore) -> AsyncIterator[Order]:
    ids = dict.fromkeys(await finding.under_way(store))
    async for batch in finding.summaries(store, in_error=True):
        ids.update((one.order_id, None) for one in batch)
    every = list(ids)
    for start in range(0, len(every), finding.BATCH):
        for order in await finding.load_all(store, every[start : start + finding.BATCH]):
            if not order.rejected and order.process_state not in FINISHED:
                yield order


VERBS = (
    Verb.with_store(
        "workflows",
        "check workflow definitions against the orders in flight, before a deploy",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        prepare=_check,
    ),
)
