"""The verbs of a project: ``new``, ``infra`` and ``docs``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sas.cli import application, options, screen
from sas.codec.record import to_line
from sas.deploy import derived
from sas.deploy.queues import Needs
from sas.distribution import files
from sas.operate.errors import UsageError
from sas.ports import Business
from sas.project import PAGES, ProjectError, add_deployment, create, sources

_UNUSABLE = (ValueError, KeyError, TypeError, AttributeError)
"""Errors of a file whose content has another form."""
_KEPT_ENDINGS = (".md", ".schema.json", ".json", ".py")


def new(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A directory to make.", show_default=False)
    ],
    *,
    wheels: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Install both packages from their wheels in this directory, which are copied: for "
            "machines whose package index does not have them.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Write a project of your own into a new directory.

    \b
      sas new my-orders
      cd my-orders && make test && make up

    It has function_app.py, host.json, settings, a workflow of two steps with its agents, tests,
    Makefile and README. It runs on the installed packages; nothing of them is copied. `sas infra`
    adds what deploys it.
    """
    try:
        create(directory, wheels)
    except ProjectError as error:
        raise UsageError(str(error)) from None
    if json:
        screen.say(to_line({"Project": str(directory)}))
        return
    is_here = directory.resolve() == Path.cwd()
    test = "make test" if is_here else f"cd {shlex.quote(str(directory))} && make test"
    screen.sentence(f"{directory} is a project of your own. Next: {test}")
    if wheels is None:
        screen.sentence(
            "If no package index of yours has scheduler-agent-supervisor, write it again with "
            "--wheels DIR."
        )


def infra(
    *,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; say what does not follow from the app."),
    ] = False,
    emulator: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the emulator's Config.json into this file, and nothing else.",
        ),
    ] = None,
) -> None:
    """Write what the application needs to be deployed.

    \b
      sas infra
      sas infra --check      (exit code 1: something differs)

    It writes infra/ (Bicep), azure.yaml for azd, and workflows for GitHub into the project in this
    directory. Files that are there stay as they are, but for what follows from the application: its
    queues and the access to them, its applications, its settings. Its agents and the addresses of
    services are those of the sagas. [tool.sas] of pyproject.toml has the rest:

    \b
      app = "orders"             the module of the sagas
      applications = ["web"]     who sends orders; each gets a response queue
      bound = []                those of them with queues of orders of their own
      settings = ["LIMIT"]      more settings of the app; no keys: a Key Vault has them
    """
    if check and emulator:
        raise UsageError("give --check or --emulator, not both")
    project = Path()
    needs = needs_of(project)
    try:
        if emulator:
            derived.write(emulator, derived.emulated(project, needs))
            return
        if check:
            raise typer.Exit(max(_check(project, needs), _compare_functions(project, needs)))
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
    raise typer.Exit(_compare_functions(project, needs))


def needs_of(directory: Path) -> Needs:
    """Return what the application of a project needs of its platform.

    Settings that the environment lacks come from ``local.settings.json`` while the app is loaded.

    Raises:
        UsageError: the app is not named or cannot be loaded, or a name is not valid.
    """
    app = application.in_folder(directory)
    if app is None:
        raise UsageError(f"no application is named: {application.HOW}")
    table = app.table
    with application.local_settings(directory):
        business = application.load(app)
    if not isinstance(business, Business):
        raise UsageError(f"{app.label} has no agents: name a module with sagas")
    settings = dict.fromkeys((*business.settings, *table.settings))
    try:
        return Needs(
            agents=list(business.agents),
            applications=table.applications,
            bound=table.bound,
            settings=list(settings),
        )
    except ValueError as error:
        raise UsageError(f"[tool.sas] of {directory / application.PROJECT_FILE}: {error}") from None


def _check(project: Path, needs: Needs) -> int:
    differing = derived.differences(project, derived.derived(project, needs))
    for sentence in differing.values():
        screen.sentence(sentence)
    if differing:
        screen.sentence("Run `sas infra`, and give new settings a value in local.settings.json.")
    return 1 if differing else 0


def _compare_functions(project: Path, needs: Needs) -> int:
    """Say which agents of function_app.py the named module lacks: they would get no queue."""
    if not (project / application.FUNCTIONS).is_file():
        return 0
    try:
        with application.local_settings(project):
            apps = application.function_apps()
    except Exception as error:  # noqa: BLE001  a value or azure.functions is missing, or any other
        screen.complain(f"{application.FUNCTIONS} is not compared: {error}")
        return 0
    named = str(application.table_of(project).app).partition(":")[0]
    agents = {agent for app in apps for agent in getattr(app, "agents", ())}
    others = agents.difference(needs.agents)
    for agent in sorted(others):
        screen.sentence(
            f"{application.FUNCTIONS} has the agent {agent}, which no saga of {named} has: "
            f"import its saga into {named}, the module that [tool.sas] names"
        )
    return 1 if others else 0


def _report(
    paths: Sequence[str], names: Sequence[str], contents: derived.Contents, needs: Needs
) -> None:
    if paths:
        screen.sentence(f"wrote {len(paths)} files to deploy with: infra/README.md says how")
    for name in names:
        screen.sentence(f"wrote {name}")
    if derived.LOCAL in names:
        values = contents[derived.LOCAL]["Values"]
        empty = [name for name in needs.settings if not values[name]]
        if empty:
            screen.sentence(f"Give a value in {derived.LOCAL}: {', '.join(empty)}")
    if not names:
        screen.sentence("Everything follows from the app already.")


def docs(
    page: Annotated[str | None, typer.Argument(metavar="PAGE", show_default=False)] = None,
) -> None:
    """Print a page of the documentation, or list all pages.

    \b
      sas docs
      sas docs your-own-workflow
      sas docs docs/adr/0012
      sas docs claim
    """
    if page is None:
        for name, path in pages().items():
            lines = (files() / path).read_text(encoding="utf-8").splitlines()
            titles = (line.strip('# "') for line in lines if line.startswith(("# ", '"""')))
            screen.say(f"{name:<44}{next(titles, '')}".rstrip())
        return
    source = page_of(page)
    if source is None:
        raise UsageError(f"there is no page {page!r}: `sas docs` lists them")
    screen.say((files() / source).read_text(encoding="utf-8").rstrip())


def pages() -> dict[str, str]:
    """Return the path of each page, by its short name."""
    paths = sources((*PAGES, "infra/README.md"))
    return dict(sorted(((_short(path), path) for path in paths), key=lambda page: "/" in page[0]))


def page_of(name: str) -> str | None:
    """Return the path of the page that a person or a text means, if there is one."""
    paths, short = pages(), _short(name)
    beginnings = [path for page, path in paths.items() if page.startswith(f"{short}-")]
    if short in paths:
        return paths[short]
    return paths.get(f"{short}/README") or (beginnings[0] if len(beginnings) == 1 else None)


def _short(name: str) -> str:
    name = name.removeprefix("docs/").removeprefix("samples/").strip("/").removeprefix("claim/")
    for ending in _KEPT_ENDINGS:
        name = name.removesuffix(ending)
    return name
