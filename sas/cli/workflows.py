"""``sas workflows``: what a deploy would break, a workflow as a diagram, and the contract."""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sas.cli import application, output
from sas.cli import arguments as args
from sas.cli.arguments import Subcommand, Work
from sas.cli.asyncapi import document
from sas.cli.output import Record
from sas.codec.payloads import decode_order
from sas.codec.record import to_line
from sas.config import read_payload_codec
from sas.domain.order import FINISHED, Order
from sas.domain.workflow import Workflow, Workflows
from sas.features.claim_check import ClaimCheck
from sas.features.version_check import definition_hash, value_name
from sas.operate import finding
from sas.operate.errors import UsageError
from sas.ports import Business, PayloadCodec, StateStore
from sas.saga.shapes import Shapes, shapes_of

DESCRIPTION = """\
check: compare the workflows of an application with the orders in flight (under way or in Error) and
with the definitions that the table remembers. An order keeps the workflow version it was submitted
with. That version must still exist, with the same steps, order, agents, undos and reaction to a
failure. Times and thresholds may change. The stored content and results of these orders must fit
the types of the application; a payload codec needs SAS_PAYLOAD_KEYS here for that.

draw: print the steps as a Mermaid diagram, of one workflow or of all. schema: print the AsyncAPI
document of the application, with JSON Schema of its orders and results. Both need no system.

Exit code 0: all is well. 1: a deploy would break something, or there is no such table. 2: the app
cannot be loaded. 3: Storage does not answer.

  sas workflows check
  sas workflows check --json
  sas workflows draw claim
  sas workflows schema > asyncapi.json
"""

SHOWN_IDS_MAX = 3
"""How many order ids are shown for a version. With ``--json`` all are shown."""


@dataclass(slots=True, kw_only=True)
class VersionStatus:
    """One version of a workflow: its definition, and the orders in flight with this version.

    ``remembered`` is the hash of the definition that the table remembers. ``other_steps`` counts
    the orders in flight whose steps differ from those of ``definition``. ``misfits`` says of each
    other order in flight what no longer fits ``shapes``.
    """

    definition: Workflow | None = None
    shapes: Shapes | None = None
    remembered: str | None = None
    ids: list[str] = field(default_factory=list)
    other_steps: int = 0
    misfits: list[str] = field(default_factory=list)

    @property
    def orders(self) -> int:
        """How many orders in flight use this version."""
        return len(self.ids)

    async def count(self, order: Order, store: StateStore, codec: PayloadCodec | None) -> None:
        """Count an order in flight that uses this version."""
        self.ids.append(order.order_id)
        names = [step.name for step in self.definition.steps] if self.definition else []
        if [step.name for step in order.steps] != names:
            self.other_steps += 1
        elif self.shapes is not None:
            complete_order = await ClaimCheck(store).fetch_all(order)
            decoded_order = decode_order(complete_order, codec)
            self.misfits += [
                f"order {order.order_id}: {misfit}" for misfit in self.shapes.misfits(decoded_order)
            ]

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
        if self.misfits:
            rest = len(self.misfits) - 1
            return (
                f"{self.misfits[0]}{f' (and {rest:,} more)' if rest else ''}: a step that "
                "reads it would be held. Let the type take both, or give the new one a version of "
                "its own"
            )
        return ""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["check", "draw", "schema"])
    parser.add_argument("name", nargs="?", metavar="NAME", help="draw: only this workflow")
    application.add_argument(parser)
    args.add_json(parser, "JSON lines; check: with every order id")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.name is not None and arguments.action != "draw":
        raise UsageError(f"{arguments.name!r}: only draw takes the name of a workflow")
    if arguments.action == "check":
        return _CHECK.run(arguments)
    app = application.named(arguments.app)
    definitions = application.load(app)
    if arguments.action == "draw":
        text = "\n".join(_diagram(application.workflows_in(definitions), arguments.name))
        output.say(to_line({"Mermaid": text}) if arguments.json else text)
    elif isinstance(definitions, Workflows):
        raise UsageError(f"{app.label} has no types: give a module or a saga")
    else:
        api = document(definitions, read_payload_codec(os.environ))
        output.say(to_line(api) if arguments.json else json.dumps(api, indent=2))
    return 0


def _check(arguments: argparse.Namespace) -> Work:
    return _Check(application.load(application.named(arguments.app)), as_json=arguments.json).run


def _diagram(workflows: Workflows, name: str | None) -> Iterator[str]:
    """Yield the lines of a Mermaid flowchart: each workflow is a subgraph.

    Raises:
        UsageError: there is no workflow of this name.
    """
    names = sorted({workflow.name for workflow in workflows})
    if name is not None and name not in names:
        raise UsageError(f"there is no workflow {name!r}: known are {', '.join(names)}")
    yield "flowchart TD"
    for position, workflow in enumerate(workflows):
        if name in {None, workflow.name}:
            yield f'  subgraph w{position}["{workflow.name} version {workflow.version}"]'
            for number, (step, rule) in enumerate(
                zip(workflow.steps, workflow.rules.steps, strict=True)
            ):
                agents = " or ".join(step.agents)
                undo = "with undo" if step.undo else "no undo"
                yield f'    w{position}s{number}["{step.name}<br>agent {agents}<br>{undo}"]'
                for earlier in rule.after:
                    yield f"    w{position}s{earlier} --> w{position}s{number}"
            yield "  end"


class _Check:
    """One check of the workflows that an application defines."""

    def __init__(self, definitions: Workflows | Business, *, as_json: bool) -> None:
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
        for workflow in application.workflows_in(self._definitions):
            status = statuses[workflow.name, workflow.version]
            status.definition = workflow
            if isinstance(self._definitions, Business):
                status.shapes = shapes_of(self._definitions, workflow)
        codec = read_payload_codec(os.environ)
        if isinstance(self._definitions, Business):
            codec = self._definitions.codec or codec
        async for order in _in_flight(store):
            key = (order.details.workflow, order.details.version)
            await statuses[key].count(order, store, codec)
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
        "Misfits": status.misfits,
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


_CHECK = Subcommand.with_store(
    "workflows",
    "check workflows before a deploy, draw them, or print their AsyncAPI",
    description=DESCRIPTION,
    add_arguments=_add_arguments,
    prepare=_check,
)
VERBS = (replace(_CHECK, run=_run),)
