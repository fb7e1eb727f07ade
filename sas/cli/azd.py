"""The verb ``azd``: deploys a project with azd, and is called by azd's hooks and the workflows."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from sas.cli import application, screen, system
from sas.deploy import azd as deployment
from sas.deploy import github, package
from sas.deploy.commands import CommandFailedError
from sas.deploy.deploy import deploy
from sas.deploy.smoke import packaged
from sas.environment import names_a_system
from sas.operate.errors import NotPossibleError, UsageError


def azd(
    action: Literal[
        "check",
        "preprovision",
        "postprovision",
        "owner",
        "package",
        "deploy",
        "smoke",
        "sign-in",
        "settings",
        "export",
        "restore",
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            help="FILE of package, deploy, smoke, export and restore; OWNER/REPO of sign-in."
        ),
    ] = None,
    *,
    environment: Annotated[
        str, typer.Option(metavar="NAME", help="Of sign-in: the environment on GitHub.")
    ] = github.ENVIRONMENT,
) -> None:
    """Deploy the project in this directory, which has its infra/, with azd.

    \b
      azd provision --no-state
      sas azd package && sas azd deploy build/app.zip
      sas azd sign-in OWNER/REPO
      sas azd export FILE

    azure.yaml and .github/workflows/deploy.yml call all of it but sign-in and restore.

    \b
      check         refuse a deployment that would fail, and change nothing
      preprovision  the same, make the group, register providers, and ask who gets alerts
      postprovision lock the orders, and remove rights and queues that are not given any more
      owner         do what only an owner of the resource group may do
      package       make the zip to deploy, build/app.zip if no FILE is named
      deploy        deploy FILE and try it; a FILE that was kept is a rollback
      smoke         try what is deployed: its functions, your rights, and one order
      sign-in       let the workflow of a GitHub repository deploy
      settings      print the variables of the workflow (in VARS) that it asks for
      export        write all rows of the state store into FILE (.jsonl.gz)
      restore       write the rows of FILE into an empty table
    """
    code = 0
    try:
        match action:
            case "package":
                _package(Path(target) if target else package.PACKAGE)
            case "deploy" | "smoke":
                code = _deploy(action, Path(target) if target else None)
            case _ if (action in {"sign-in", "export", "restore"}) != bool(target):
                raise UsageError(
                    "sign-in needs OWNER/REPO, export and restore need FILE, no other does"
                )
            case "sign-in":
                github.sign_in(str(target), environment)
            case "export" | "restore":
                _copy(action, Path(str(target)))
            case "settings":
                sys.stdout.write(github.settings(os.environ))
            case _:
                deployment.HOOKS[action](os.environ)
    except (deployment.DeploymentRefusedError, CommandFailedError, ValueError) as error:
        for line in f"sas: {error}".splitlines():  # commands to run are on lines of their own
            screen.complain(line)
        code = NotPossibleError.exit_code
    raise typer.Exit(code)


def _package(zip_path: Path) -> None:
    functions = _functions_of(Path())
    with screen.progress("packages for Azure") as tell:
        count = package.package(zip_path, functions, tell)
    size = zip_path.stat().st_size
    screen.sentence(
        f"{zip_path} has {len(functions)} functions and {screen.count(count, 'package')}: "
        f"{size / 1e6:.1f} MB"
    )


def _deploy(action: str, zip_path: Path | None) -> int:
    """Deploy a zip if asked for, and try what is deployed; return the exit code."""
    from sas.cli import smoke  # noqa: PLC0415  # slow to import (Azure's SDK)

    env = deployment.with_azd(os.environ)
    if action == "deploy" and zip_path is None:
        raise UsageError("FILE is missing: sas azd deploy build/app.zip")
    expected = packaged(zip_path) if zip_path else _functions_of(Path())
    if action == "deploy" and zip_path:
        deploy(zip_path, env)
    code = smoke.run(expected, env)
    if action == "deploy":
        deployment.show_places(env)
    return code


def _functions_of(project: Path) -> set[str]:
    """Return the names of the functions of function_app.py, as the host finds them.

    Raises:
        DeploymentRefusedError: it cannot be loaded.
    """
    try:
        with application.importing(project), application.local_settings(project):
            apps = application.function_apps()
    except Exception as error:  # noqa: BLE001  it is the application's own code
        raise deployment.DeploymentRefusedError(
            f"{application.FUNCTIONS} cannot be loaded: {error}"
        ) from None
    return {function.get_function_name() for app in apps for function in app.get_functions()}


def _copy(action: str, file: Path) -> None:
    """Export a table into a file, or restore it.

    It is the one that azd deployed. Without an environment of azd, it is that of other verbs.

    Raises:
        DeploymentRefusedError: azd does not know its table.
    """
    from sas.deploy import backup  # noqa: PLC0415  # Azure's SDK is slow to import

    env: Mapping[str, str] = os.environ
    source = "variables of this shell" if names_a_system(env) else "the stack that runs here"
    if values := deployment.azd_values():
        if not values.get("SAS_TABLES__endpoint"):
            raise deployment.DeploymentRefusedError(deployment.NO_OUTPUTS)
        env, source = deployment.with_azd(env), f"azd's environment {values['AZURE_ENV_NAME']}"

    async def work(_: system.LiveSystem) -> int:
        storage = system.read_storage(os.environ)
        screen.sentence(f"Table {storage.table} of {storage.account}, from {source}")
        copy = backup.export if action == "export" else backup.restore
        await copy(storage.endpoint, storage.table, file, screen.sentence)
        return 0

    system.run(work, env)
