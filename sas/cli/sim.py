"""``sas sim``: simulate the workflows of an application under every fault."""

from __future__ import annotations

import argparse
import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sas.cli import application, output
from sas.cli import arguments as args
from sas.cli.application import App
from sas.cli.arguments import Subcommand
from sas.cli.output import ProgressLine
from sas.codec.record import to_line
from sas.operate.errors import UsageError

if TYPE_CHECKING:
    from sas.testing.plan import Plan
    from sas.testing.play import Project
    from sas.testing.tally import Tally
    from sas.testing.violation import Violation

DESCRIPTION = """\
Simulate the workflows of an application: the real scheduler, agents' retries, supervisor and
operator's commands, over queues and a table in memory. Model services stand in for the remote ones.
Each seed draws orders, commands and faults: crashes between any two steps, lost locks, duplicates,
lost answers, throttling, killed instances, clocks apart, services that fail, hang or refuse, a
dependency away for seconds to days, a deploy in the middle. Time is virtual: days take seconds.
infra/queues.json and host.json of the project give the rules of the queues and of the host.

--agents own runs the agents of the application. Their HTTP calls reach a model HTTP service in the
simulation, which counts effects by Idempotency-Key. The output names each step that has its effect
twice or not at all, and each undo that leaves it. sim.json of the project has example orders and
the answers.

After every transition, and at the end, the invariants are checked. The same seed always plays the
same story. --seed prints it. A seed that breaks an invariant is made as short as possible.

Exit code 0: every invariant held. 1: one did not. 2: the app cannot be loaded.

  sas sim
  sas sim --seeds 5000
  sas sim --seed 42
  sas sim --agents own
"""
SHOWN_ITEMS_MAX = 5
"""How many items of a list are printed at the end: broken seeds, and transitions never reached."""
TOLD_AT_ONCE = 20
"""How many broken seeds are printed as soon as they are found."""
ORDERS_PER_SEED = 6


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    application.add_argument(parser)
    parser.add_argument(
        "--project",
        type=Path,
        metavar="DIR",
        help=f"where infra/queues.json, host.json and sim.json are (default: with "
        f"{application.PROJECT_FILE}, or here)",
    )
    parser.add_argument(
        "--agents",
        choices=("models", "own"),
        default="models",
        help="play model services in place of the agents (default), or the application's own",
    )
    whole = functools.partial(args.number, whole=True)
    parser.add_argument("--seeds", type=whole("seeds", 1, 100_000_000), default=200, metavar="N")
    parser.add_argument("--first", type=whole("a seed", 0, 999_999_999), default=0, metavar="SEED")
    parser.add_argument("--jobs", type=whole("processes", 1, 256), metavar="J")
    parser.add_argument(
        "--orders", type=whole("orders", 1, 1000), default=ORDERS_PER_SEED, metavar="N"
    )
    parser.add_argument(
        "--seed", type=whole("a seed", 0, 999_999_999), metavar="SEED", help="tell its story"
    )
    args.add_json(parser, "JSON lines: one for each broken seed, then the totals")


def _run(arguments: argparse.Namespace) -> int:
    from sas.testing.platform import PlatformFileError  # noqa: PLC0415  # slow to import

    own_agents = arguments.agents == "own"
    app = application.named(arguments.app)
    directory = arguments.project or app.folder
    make = functools.partial(project_of, app, directory, own_agents=own_agents)
    try:
        project = make()
    except PlatformFileError as error:
        raise UsageError(str(error)) from None
    if arguments.seed is not None:
        return _play_one(project, arguments)
    tally = _play_many(make, project, arguments)
    _print(tally, arguments)
    if tally.broken and not arguments.json:
        _shrink(project, tally.broken[0][0], arguments)
    return 1 if tally.broken else 0


def project_of(app: App, directory: Path, *, own_agents: bool = False) -> Project:
    """Return the project of an application, with the files in ``directory``.

    With ``own_agents`` the simulation runs the agents of the application instead of models.

    Raises:
        UsageError: the application cannot be loaded, or its ``sim.json`` cannot be used.
        PlatformFileError: a file of the project cannot be used.
    """
    from sas.cli.sim_inputs import own_application  # noqa: PLC0415
    from sas.testing.play import Project  # noqa: PLC0415

    if own_agents:
        played_app = own_application(app, directory)
        with played_app.environment():
            workflows = played_app.make().workflows
        return Project.of(workflows, directory, played_app)
    return Project.of(application.workflows_in(application.load(app)), directory)


def _play_one(project: Project, arguments: argparse.Namespace) -> int:
    from sas.testing.plan import drawn  # noqa: PLC0415
    from sas.testing.play import play  # noqa: PLC0415

    plan = drawn(arguments.seed, project.workflows, arguments.orders)
    played = play(project, plan, tell=True)
    if arguments.json:
        broken = [str(violation) for violation in played.violations]
        output.say(to_line({"Seed": arguments.seed, "Broken": broken, "Story": played.story}))
        return 1 if broken else 0
    for line in played.story:
        _tell(line)
    for (workflow, state), count in sorted(played.ends.items()):
        _tell(f"{workflow}: {output.orders(count)} {state}")
    if not played.violations:
        _tell(f"seed {arguments.seed}: every invariant held")
        return 0
    for violation in played.violations:
        _tell(f"seed {arguments.seed}: {violation}")
    _shrink(project, arguments.seed, arguments)
    return 1


def _play_many(
    make: functools.partial[Project], project: Project, arguments: argparse.Namespace
) -> Tally:
    from sas.testing.run import jobs_here, played  # noqa: PLC0415
    from sas.testing.tally import Tally  # noqa: PLC0415

    tally = Tally(workflows=project.workflows)
    seeds = range(arguments.first, arguments.first + arguments.seeds)

    def describe() -> str:
        broken = f", {len(tally.broken)} broken" if tally.broken else ""
        return f"{tally.seeds:,} of {len(seeds):,} seeds, {tally.orders:,} orders{broken}"

    progress = ProgressLine(describe)
    jobs = arguments.jobs or jobs_here()
    with progress.shown():
        for result in played(make, seeds, arguments.orders, jobs):
            tally.add(result)
            if result.violations:
                _tell_at_once(result.plan.seed, result.violations[0], len(tally.broken))
            progress()
    tally.broken.sort(key=lambda pair: pair[0])
    return tally


def _tell_at_once(seed: int, violation: Violation, number: int) -> None:
    """Print a broken seed as soon as it is found, because a run may take hours."""
    if number <= TOLD_AT_ONCE:
        output.complain(f"seed {seed} is broken: {violation}")
    if number == TOLD_AT_ONCE:
        output.complain("from here on, broken seeds are only counted until the end")


def _print(tally: Tally, arguments: argparse.Namespace) -> None:
    command_of = functools.partial(_command_of_seed, arguments)
    advice = [*tally.own_faults_told(command_of), *tally.advice()]
    if arguments.json:
        for seed, violations in tally.broken:
            broken = [str(violation) for violation in violations]
            output.say(to_line({"Seed": seed, "Broken": broken, "Again": command_of(seed)}))
        ends = [
            {"Workflow": name, "State": state, "Orders": count}
            for (name, state), count in sorted(tally.ends.items())
        ]
        totals = {"Seeds": tally.seeds, "Orders": tally.orders, "Broken": len(tally.broken)}
        missing = tally.never_reached()
        output.say(to_line(totals | {"Ends": ends, "Advice": advice, "NeverReached": missing}))
        return
    states = ("Processed", "Compensated", "Error", "Rejected")
    names = sorted({name for name, _ in tally.ends})
    rows = [[name, *(f"{tally.ends[name, state]:,}" for state in states)] for name in names]
    for line in output.table(["workflow", *(state.lower() for state in states)], rows):
        output.say(line)
    for line in advice:
        _tell(line)
    if missing := tally.never_reached():
        _tell(f"kinds of transition never reached: {_first_items(missing)}")
    for seed, violations in tally.broken[:SHOWN_ITEMS_MAX]:
        _tell(f"seed {seed}: {violations[0]}")
        _tell(f"seed {seed} again: {command_of(seed)}")
    count = len(tally.broken)
    verdict = "1 seed broke one" if count == 1 else f"{count:,} seeds broke one"
    verdict = verdict if count else "every invariant held"
    if never_processed := tally.never_processed():
        verdict += f", and no order of {', '.join(never_processed)} ended Processed"
    _tell(f"{tally.seeds:,} seeds, {tally.orders:,} orders: {verdict}")


def _first_items(texts: list[str]) -> str:
    """Return the first items of a list, and how many more there are."""
    ending = [f"{len(texts) - SHOWN_ITEMS_MAX} more"] if len(texts) > SHOWN_ITEMS_MAX else []
    return "; ".join([*texts[:SHOWN_ITEMS_MAX], *ending])


def _command_of_seed(arguments: argparse.Namespace, seed: int) -> str:
    """Return the command that plays a seed again, with all arguments that change its story."""
    words = ["sas", "sim"]
    if arguments.app is not None:
        words += ["--app", arguments.app]
    if arguments.project is not None:
        words += ["--project", str(arguments.project)]
    if arguments.agents != "models":
        words += ["--agents", arguments.agents]
    if arguments.orders != ORDERS_PER_SEED:
        words += ["--orders", str(arguments.orders)]
    return shlex.join([*words, "--seed", str(seed)])


def _shrink(project: Project, seed: int, arguments: argparse.Namespace) -> None:
    """Print a story of a seed that is as short as possible and still breaks an invariant."""
    from sas.testing.plan import drawn  # noqa: PLC0415
    from sas.testing.play import play  # noqa: PLC0415
    from sas.testing.shrink import shrunk  # noqa: PLC0415

    def fails(plan: Plan) -> bool:
        return bool(play(project, plan).violations)

    output.complain(f"seed {seed} is made shorter: this plays it some hundred times")
    plan = shrunk(drawn(seed, project.workflows, arguments.orders), fails)
    _tell(f"the shortest story of seed {seed} that still fails:")
    for line in play(project, plan, tell=True).story:
        _tell(line)


def _tell(text: str) -> None:
    """Print a sentence, on several lines if the terminal is narrower."""
    output.say(output.row([text]))


VERBS = (
    Subcommand(
        name="sim",
        summary="simulate the workflows of an application under every fault",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        run=_run,
        connects=False,
    ),
)
