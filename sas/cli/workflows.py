"""``sas workflows check``: show which orders in flight the definitions of a deploy would break."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from sas.cli import application, output
from sas.cli import arguments as args
from sas.cli.arguments import Subcommand, Work
from sas.cli.output import Record
from sas.codec.record import to_line
from sas.domain.order import FINISHED, Order
from sas.domain.workflow import Workflow, Workflows
from sas.features.version_check import definition_hash, value_name
from sas.operate import finding
from sas.ports import StateStore

DESCRIPTION = """\
Compare the workflows of an application with the orders in flight (under way or in Error) and with
the definitions that the table remembers. An order keeps the workflow version it was submitted with.
That version must still exist, with the same steps, order, agents, undos and reaction to a failure.
Times and thresholds may change.

Exit code 0: all is well. 1: a deploy would break something, or there is no such table. 2: the app
cannot be loaded. 3: Storage does not answer.

  sas workflows check
  sas workflows check --json
"""

SHOWN_IDS_MAX = 3
"""How many order ids are shown for a version. With ``--json`` all are shown."""


@dataclass(slots=True, kw_only=True)
class VersionStatus:
    """One version of a workflow: its definition, and the orders in flight with this version.

    ``remembered`` is the hash of the definition that the table remembers. ``other_steps`` counts
    the orders in flight whose steps differ from those of ``definition``.
    """

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
        """Whether the table remembers another definition of this version."""
        current_hash = definition_hash(self.definition) if self.definition else None
        return (
            self.remembered is not None
            and current_hash is not None
            and self.remembered != current_hash
        )

    def trouble(self) -> str:
        """Return what a deploy would break; an empty text if it would break nothing."""
        if self.definition is None:
            return "missing: keep this version until its orders have ended" if self.orders else ""
        if self.changed:
            return "changed: give the new definition a version of its own and keep the old one"
        if self.other_steps:
            return "changed: orders in flight have other steps"
        return ""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["check"])
    application.add_argument(parser)
    args.add_json(parser, "JSON lines, with every order id")


def _check(arguments: argparse.Namespace) -> Work:
    return _Check(application.workflows_of(arguments.app), as_json=arguments.json).run


class _Check:
    """One check of the workflows that an application defines."""

    def __init__(self, definitions: Workflows, *, as_json: bool) -> None:
        self._definitions = definitions
        self._as_json = as_json

    async def run(self, store: StateStore) -> int:
        """Check, print the state of each version, and return the exit code."""
        broken = False
        for (name, version), status in sorted((await self._statuses(store)).items()):
            broken = broken or bool(status.trouble())
            record = _record(name, version, status)
            line = f"{name} version {version}: {_status_text(status, status.trouble())}"
            output.say(to_line(record) if self._as_json else output.one_line(line))
        return 1 if broken else 0

    async def _statuses(self, store: StateStore) -> Mapping[tuple[str, int], VersionStatus]:
        """Return every version that is defined or that an order in flight uses."""
        statuses: dict[tuple[str, int], VersionStatus] = defaultdict(VersionStatus)
        for workflow in self._definitions:
            statuses[workflow.name, workflow.version].definition = workflow
        async for order in _in_flight(store):
            statuses[order.details.workflow, order.details.version].count(order)
        for (name, version), status in statuses.items():
            shared = await store.read_shared(value_name(name, version))
            status.remembered = shared.value if shared else None
        return statuses


def _record(name: str, version: int, status: VersionStatus) -> Record:
    return {
        "Workflow": name,
        "Version": version,
        "Defined": status.definition is not None,
        "Recorded": status.remembered is not None,
        "Changed": status.changed,
        "Trouble": status.trouble() or None,
        "InFlight": status.ids,
    }


def _status_text(status: VersionStatus, trouble: str) -> str:
    examples = ", ".join(status.ids[:SHOWN_IDS_MAX])
    if status.orders > SHOWN_IDS_MAX:
        examples += ", ..."
    users = f"{output.orders(status.orders)} in flight" + (f" ({examples})" if examples else "")
    if trouble:
        return f"{users}; {trouble}"
    if status.remembered is None:
        return f"{users}; not used yet" if not status.orders else f"{users}; not recorded yet"
    return f"{users}; unchanged"


async def _in_flight(store: StateStore) -> AsyncIterator[Order]:
    ids = dict.fromkeys(await finding.under_way(store))
    async for batch in finding.summaries(store, in_error=True):
        ids.update((summary.order_id, None) for summary in batch)
    order_ids = list(ids)
    for start in range(0, len(order_ids), finding.BATCH_ORDERS):
        for order in await finding.load_all(store, order_ids[start : start + finding.BATCH_ORDERS]):
            if not order.rejected and order.process_state not in FINISHED:
                yield order


VERBS = (
    Subcommand.with_store(
        "workflows",
        "check workflow definitions against the orders in flight, before a deploy",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        prepare=_check,
    ),
)
