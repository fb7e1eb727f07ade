"""``sas workflows``: what a deploy would break, a workflow as a diagram, and the contract."""

from __future__ import annotations

import os
from collections.abc import Iterator
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from sas.cli import application, options, screen
from sas.cli.system import LiveSystem, run
from sas.codec.record import to_line
from sas.config import read_payload_codec
from sas.domain.workflow import Workflows
from sas.operate.errors import UsageError

if TYPE_CHECKING:
    from sas.operate.versions import WorkflowVersion

SHOWN_IDS_MAX = 3
"""How many order ids are shown for a version. With ``--json`` all are shown."""

room = typer.Typer(
    no_args_is_help=True,
    help="Check workflows before a deploy, draw them, print their AsyncAPI.",
)


@room.command()
def check(*, app: options.App = None, json: options.Json = False) -> None:
    """Check what a deploy of the application would break.

    \b
      sas workflows check
      sas workflows check --json      (with the id of every order)

    It compares the workflows with the orders in flight (under way or in Error) and with the
    definitions that the table remembers. An order keeps the version of its workflow that it was
    submitted with. That version must still exist, with the same steps, order, agents, undos and
    reaction to a failure. Times and thresholds may change. The stored content of these orders must
    fit the types of the application; a payload codec needs SAS_PAYLOAD_KEYS here for that.

    Exit code 1: a deploy would break something, or there is no such table.
    """
    from sas.operate.versions import versions  # noqa: PLC0415  # slow to import

    definitions = application.load(application.named(app))

    async def work(system: LiveSystem) -> int:
        codec = read_payload_codec(os.environ)
        answer = await versions(await system.store(), definitions, codec)
        for version in answer:
            if json:
                screen.say(version.line())
            else:
                label = f"{version.workflow} version {version.version}"
                screen.sentence(f"{label}: {_status(version)}")
        return 1 if any(version.trouble for version in answer) else 0

    run(work)


@room.command()
def draw(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only this workflow.")] = None,
    *,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Draw the steps of one workflow, or of all, as a Mermaid diagram. It needs no system.

    \b
      sas workflows draw
      sas workflows draw claim
    """
    definitions = application.load(application.named(app))
    text = "\n".join(_diagram(application.workflows_in(definitions), name))
    screen.say(to_line({"Mermaid": text}) if json else text)


@room.command()
def schema(*, app: options.App = None, json: options.Json = False) -> None:
    """Print the AsyncAPI document of the application. It needs no system.

    \b
      sas workflows schema > asyncapi.json

    It has the JSON Schema of the application's orders and results.
    """
    from sas.cli.asyncapi import document  # noqa: PLC0415  # slow to import

    named = application.named(app)
    definitions = application.load(named)
    if isinstance(definitions, Workflows):
        raise UsageError(f"{named.label} has no types: give a module or a saga")
    api = document(definitions, read_payload_codec(os.environ))
    screen.say(to_line(api) if json else dumps(api, indent=2))


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


def _status(version: WorkflowVersion) -> str:
    ids = version.in_flight
    examples = ", ".join([*ids[:SHOWN_IDS_MAX], *(["..."] if len(ids) > SHOWN_IDS_MAX else [])])
    users = f"{screen.count(len(ids), 'order')} in flight" + (f" ({examples})" if ids else "")
    if version.trouble:
        return f"{users}; {version.trouble}"
    if version.recorded:
        return f"{users}; unchanged"
    return f"{users}; not recorded yet" if ids else f"{users}; not used yet"
