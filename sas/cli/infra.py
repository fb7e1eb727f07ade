"""``sas infra`` writes what a deployment needs; ``sas azd`` is what azd and its workflow call."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

from sas.cli import application, output
from sas.cli.application import App
from sas.cli.arguments import Subcommand
from sas.deploy import azd, derived, github
from sas.deploy.queues import Needs
from sas.operate.errors import NotPossibleError, UsageError
from sas.ports import Business
from sas.project import ProjectError, add_deployment

INFRA = """\
Write what the application needs to be deployed, into the project in this directory: infra/ (Bicep),
azure.yaml for azd, and workflows for GitHub. Files that are there stay as they are, but for what
follows from the application:

  infra/queues.json           the request queues of its agents, and the access to them
  infra/emulator/Config.json  every queue, for the emulator
  infra/main.parameters.json  its applications and its settings (businessSettings)
  local.settings.json         a setting that is missing there gets an empty value

The agents and the addresses of services are those of the app. The table [tool.sas] of
pyproject.toml has the rest:

  [tool.sas]
  app = "orders"               # the module of the sagas
  applications = ["web"]       # who sends orders; each gets a response queue
  bound = []                   # those of them that have queues of orders of their own
  settings = ["LIMIT"]         # more settings of the app; no keys: they go into a Key Vault

If function_app.py has an agent that no saga of the module has, that is said too.

Exit code 0: all is well. 1: --check saw a difference, or function_app.py has such an agent.
2: the app cannot be loaded.

  sas infra
  sas infra --check
"""
AZD = """\
Prepare a deployment by azd of the project in this directory, which has its infra/ from sas infra.
azure.yaml and .github/workflows/deploy.yml call all of it but sign-in.

  check        refuse a deployment that would fail, and change nothing
  preprovision the same, and ask who gets alerts
  postdeploy   print where everything is
  sign-in      let the workflow of a GitHub repository deploy: identity, rights, variables
  settings     print the variables of the workflow (in VARS) that the deployment asks for

  sas azd check
  sas azd sign-in OWNER/REPO
"""
FUNCTIONS = "function_app.py"
_UNUSABLE = (ValueError, KeyError, TypeError, AttributeError)
"""Errors of a file whose content has another form."""


def needs_of(directory: Path) -> Needs:
    """Return what the application of a project needs of its platform.

    Settings that the environment lacks come from ``local.settings.json`` while the app is loaded.

    Raises:
        UsageError: the app is not named or cannot be loaded, or a name is not valid.
    """
    file = directory / application.PROJECT_FILE
    table = application.table_of(file)
    if "app" not in table:
        raise UsageError(f"no application is named: {application.HOW}")
    app = App(name=table["app"], folder=directory, label=f"app {table['app']!r} of {file}")
    with patch.dict(os.environ, _missing_settings(directory)):
        business = application.load(app)
    if not isinstance(business, Business):
        raise UsageError(f"{app.label} has no agents: name a module with sagas")
    settings = dict.fromkeys((*business.settings, *table.get("settings", ())))
    try:
        return Needs(
            agents=list(business.agents),
            applications=table.get("applications", []),
            bound=table.get("bound", []),
            settings=list(settings),
        )
    except ValueError as error:
        raise UsageError(f"[tool.sas] of {file}: {error}") from None


def _missing_settings(directory: Path) -> dict[str, str]:
    path = directory / derived.LOCAL
    try:
        values = derived.read(path)["Values"] if path.is_file() else {}
        return {name: str(text) for name, text in values.items() if name not in os.environ}
    except _UNUSABLE as error:
        raise UsageError(f"{derived.LOCAL} cannot be used: {error}") from None


def _add_infra(parser: argparse.ArgumentParser) -> None:
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--check", action="store_true", help="write nothing; say what does not follow from the app"
    )
    only.add_argument(
        "--emulator",
        type=Path,
        metavar="FILE",
        help="write the emulator's Config.json into this file, and nothing else",
    )


def _infra(arguments: argparse.Namespace) -> int:
    project = Path()
    needs = needs_of(project)
    try:
        if arguments.emulator:
            derived.write(arguments.emulator, derived.emulated(project, needs))
            return 0
        if arguments.check:
            return max(_check(project, needs), _compare_functions(project, needs))
        paths = add_deployment(project)
        contents = derived.derived(project, needs)
        differing = derived.differences(project, contents)
        for name in differing:
            derived.write(project / name, contents[name])
    except ProjectError as error:
        raise UsageError(str(error)) from None
    except _UNUSABLE as error:
        raise UsageError(f"a file of infra/ or {derived.LOCAL} cannot be used: {error}") from None
    _report(paths, list(differing), contents, needs)
    return _compare_functions(project, needs)


def _check(project: Path, needs: Needs) -> int:
    differing = derived.differences(project, derived.derived(project, needs))
    for sentence in differing.values():
        output.say(sentence)
    if differing:
        output.say("Run `sas infra`, and give new settings a value in local.settings.json.")
    return 1 if differing else 0


def _compare_functions(project: Path, needs: Needs) -> int:
    """Say which agents of function_app.py the named module lacks: they would get no queue."""
    if not (project / FUNCTIONS).is_file():
        return 0
    try:
        with patch.dict(os.environ, _missing_settings(project)):
            members = vars(import_module(Path(FUNCTIONS).stem)).values()
    except Exception as error:  # noqa: BLE001  a value or azure.functions is missing, or any other
        output.complain(f"{FUNCTIONS} is not compared: {output.one_line(str(error))}")
        return 0
    named = application.table_of(project / application.PROJECT_FILE)["app"].partition(":")[0]
    apps = [member for member in members if type(member).__name__ == "FunctionApp"]
    agents = {agent for app in apps for agent in getattr(app, "agents", ())}
    others = agents.difference(needs.agents)
    for agent in sorted(others):
        output.say(
            f"{FUNCTIONS} has the agent {agent}, which no saga of {named} has: "
            f"import its saga into {named}, the module that [tool.sas] names"
        )
    return 1 if others else 0


def _report(
    paths: Sequence[str], names: Sequence[str], contents: derived.Contents, needs: Needs
) -> None:
    if paths:
        output.say(f"wrote {len(paths)} files to deploy with: infra/README.md says how")
    for name in names:
        output.say(f"wrote {name}")
    if derived.LOCAL in names:
        values = contents[derived.LOCAL]["Values"]
        empty = [name for name in needs.settings if not values[name]]
        if empty:
            output.say(f"Give a value in {derived.LOCAL}: {', '.join(empty)}")
    if not names:
        output.say("Everything follows from the app already.")


def _add_azd(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=[*azd.HOOKS, "sign-in", "settings"])
    parser.add_argument("repository", nargs="?", metavar="OWNER/REPO", help="of sign-in")


def _azd(arguments: argparse.Namespace) -> int:
    if (arguments.action == "sign-in") != bool(arguments.repository):
        raise UsageError("OWNER/REPO belongs to sign-in: sas azd sign-in OWNER/REPO")
    try:
        if arguments.action == "sign-in":
            github.sign_in(arguments.repository)
        elif arguments.action == "settings":
            sys.stdout.write(github.settings(json.loads(os.environ.get("VARS", "{}"))))
        else:
            azd.HOOKS[arguments.action](os.environ)
    except (azd.DeploymentRefusedError, ValueError) as error:
        raise NotPossibleError(str(error)) from None
    return 0


VERBS = (
    Subcommand(
        name="infra",
        summary="write or check what the application needs to be deployed",
        description=INFRA,
        add_arguments=_add_infra,
        run=_infra,
        connects=False,
    ),
    Subcommand(
        name="azd",
        summary="hooks of azd, and the sign-in of a workflow",
        description=AZD,
        add_arguments=_add_azd,
        run=_azd,
        connects=False,
    ),
)
