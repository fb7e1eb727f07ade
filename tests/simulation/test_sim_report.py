"""What ``sas sim`` tells an adopter: broken seeds, undo paths, and what was never reached."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sas.cli.main import main
from sas.domain.messages import Verb
from sas.domain.workflow import ExtendedWait, OnFailure, Step, Undo, Workflow, Workflows
from sas.ports import Call
from sas.testing import reach, run
from sas.testing.plan import CONDITIONS, Chance, Deploy, Item, Plan, Press, Submit, drawn
from sas.testing.play import Played, Project, play
from sas.testing.remote import SimulatedAgent
from sas.testing.stage import Stage, with_newer
from sas.testing.tally import Tally
from tests.business import workflows

ROOT = Path(__file__).parents[2]
TIME = timedelta(seconds=20)
UNDO = Undo(TIME)
RESERVE = Step("reserve", "stock", TIME, undo=UNDO)
PAY = Step("pay", "bank", TIME, undo=UNDO)
ORDER = Workflow("order", 1, (RESERVE, PAY), OnFailure.UNDO)
APP = "tests.business:workflows"


def tallied(defined: Workflows, *plans: Plan) -> Tally:
    tally, project = Tally(defined), Project.of(defined, ROOT)
    for plan in plans:
        tally.add(play(project, plan))
    assert tally.broken == []
    return tally


def submits(count: int, apart_s: float = 1.0) -> tuple[Submit, ...]:
    return tuple(Submit(1.0 + apart_s * n, f"O-{n}", "order", False, 1) for n in range(count))


# --- a deploy in the middle ---


def test_a_deploy_in_the_middle_brings_one_more_version_beside_two() -> None:
    both = Workflows([replace(ORDER, steps=(RESERVE,)), replace(ORDER, version=2)])
    project = Project.of(both, ROOT)
    played = play(project, Plan(1, 2, (*submits(6, 10.0), Deploy(20.0))))
    assert played.violations == []
    assert played.orders == 6


async def test_orders_of_the_older_version_go_on_under_their_own_rules_after_a_deploy() -> None:
    project = Project.of(Workflows([ORDER]), ROOT)
    plan = Plan(1, 1, (*submits(8, 5.0), Deploy(20.0)))
    stage = Stage(plan, project.workflows, project.queues, project.host)
    await stage.world.run(stage.at_rest)
    await stage.close()
    orders = [stored.order for stored in stage.store.orders.values()]
    assert {order.details.version for order in orders} == {1, 2}
    times = {stage.rules_of(order).steps[0].time_allowed for order in orders}
    assert times == {TIME, 1.5 * TIME}


def test_a_new_version_is_one_above_the_highest_of_its_name() -> None:
    given = Workflows([ORDER, replace(ORDER, version=4), replace(ORDER, name="other")])
    found = [(one.name, one.version) for one in with_newer(given)]
    assert found == [("order", 1), ("order", 4), ("other", 1), ("order", 5), ("other", 2)]


# --- broken seeds ---


@pytest.fixture
def forgetful_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let services forget their keys: each call has its effect once more."""
    do = SimulatedAgent._do

    async def twice(self: SimulatedAgent, call: Call) -> object:
        self._ledger.of(call.key).in_force = False
        return await do(self, call)

    monkeypatch.setattr(SimulatedAgent, "_do", twice)


BROKEN = ("--first", "6", "--seeds", "2", "--jobs", "1", "--orders", "12", "--project", ".")


@pytest.mark.usefixtures("forgetful_service")
def test_the_printed_command_repeats_the_broken_seed_with_its_orders_and_project(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    project = os.path.relpath(ROOT, tmp_path)
    asked = ["sim", "--app", APP, *BROKEN[:-1], project, "--json"]
    assert main(asked) == 1
    said = capsys.readouterr()
    broken, *_, totals = [json.loads(line) for line in said.out.splitlines()]
    assert totals["Broken"]
    words = shlex.split(broken["Again"])
    assert words[:4] == ["sas", "sim", "--app", APP]
    assert words[words.index("--orders") + 1] == "12"
    assert words[words.index("--project") + 1] == project
    assert f"seed {broken['Seed']} is broken: {broken['Broken'][0]}" in said.err, "at once"
    assert main([*words[1:], "--json"]) == 1
    again = json.loads(capsys.readouterr().out)
    assert again["Broken"] == broken["Broken"]


@pytest.mark.usefixtures("forgetful_service")
def test_a_broken_seed_is_told_before_the_next_one_is_played(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def drawn_later(seed: int, defined: Workflows, orders: int) -> Plan:
        told.append(capsys.readouterr().err)
        return drawn(seed, defined, orders)

    monkeypatch.setattr(run, "drawn", drawn_later)
    asked = ["--first", "6", "--seeds", "40", "--jobs", "1", "--json"]
    assert main(["sim", "--app", APP, *asked]) == 1
    first = next(text for text in told if "is broken" in text)
    assert first.startswith("seed ")
    assert ": invariant 7: " in first


def test_the_report_of_one_seed_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "one.html"
    assert main(["sim", "--app", APP, "--seed", "9", "--html", str(page)]) == 0
    assert "1 seeds" in page.read_text()
    assert f"the report is in {page}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "jobs"), [(signal.SIGINT, "2"), (signal.SIGINT, "1"), (signal.SIGTERM, "2")]
)
def test_an_interrupted_run_has_the_table_and_the_report_of_the_seeds_that_it_played(
    number: signal.Signals, jobs: str, tmp_path: Path
) -> None:
    page = tmp_path / "sim.html"
    asked = ["--seeds", "100000", "--jobs", jobs, "--html", str(page)]
    with subprocess.Popen(
        [sys.executable, "-m", "sas.cli", "sim", "--app", APP, *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as sim:
        assert sim.stderr is not None
        assert " of 100,000 seeds" in sim.stderr.readline(), "some were played"
        if number is signal.SIGINT:
            os.killpg(sim.pid, number)  # as a terminal does
        else:
            sim.send_signal(number)
        said, complained = sim.communicate(timeout=120)
    assert sim.returncode == 130, complained
    assert said.startswith("workflow")
    assert "interrupted after " in said.splitlines()[-1]
    assert "Traceback" not in complained
    assert "Interrupted before every seed was played" in page.read_text()
    deadline = time.monotonic() + 10
    while any(_of_session(sim.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_of_session(sim.pid)), "no process is left"


def _of_session(session: int) -> Iterator[int]:
    """Yield the processes of a session."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            found = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if found[0] != "Z" and int(found[3]) == session:
            yield int(directory.name)


# --- undo paths ---


def test_the_ways_in_which_orders_were_undone_are_counted_and_marked() -> None:
    hold = replace(ORDER, on_failure=OnFailure.HOLD)
    sent = Submit(1.0, "O-0", "order", False, 1)

    def press(at_s: float, verb: Verb) -> Press:
        return Press(at_s, "O-0", verb, False, False, False)

    undone: tuple[Item, ...] = (sent, press(60.0, Verb.UNDO))
    skipped = (*undone[:1], press(30.0, Verb.SKIP), press(300.0, Verb.UNDO), Chance("refused", 1.0))
    by_hand = (*undone, press(900.0, Verb.SKIP), Chance("undo_refused", 1.0))
    ways = [
        tallied(Workflows([hold]), Plan(1, 1, items)).undo_paths()["order"]
        for items in (undone, skipped, by_hand)
    ]
    assert ways[0] == [("pay, reserve", 1)]
    assert ways[1] == [("pay, reserve (skipped)", 1)]
    assert ways[2] == [("pay (by hand), reserve (undo failed)", 1)]


def test_the_page_has_a_chart_of_the_undo_paths_and_the_states_never_reached(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "sim.html"
    asked = ["sim", "--app", APP, "--first", "20", "--seeds", "14", "--jobs", "1"]
    assert main([*asked, "--html", str(page)]) == 0
    said, html = capsys.readouterr().out, page.read_text()
    assert "undo paths: " in said
    assert "states never reached: " in said
    assert "transitions into a state never reached: " in said
    assert "steps in the order in which they were undone" in html
    assert "order: step ship Compensated, undone by hand" in html


# --- what can be reached ---

FULL = Workflow(
    "full",
    1,
    (
        Step(
            "reserve",
            "stock",
            TIME,
            undo=UNDO,
            alternatives=("other-stock",),
            extended_wait=ExtendedWait(TIME),
        ),
        Step("pay", "bank", TIME, after=(), undo=UNDO),
    ),
    OnFailure.HOLD,
    deadline=timedelta(minutes=5),
)


def test_what_a_workflow_cannot_do_is_not_named_as_never_reached() -> None:
    own = {
        "extended wait",
        "overdue",
        "step failed",
        "skipped",
    }
    assert own.isdisjoint(Tally(Workflows([ORDER])).never_reached())
    assert own <= set(Tally(Workflows([FULL])).never_reached())
    no_undo = replace(ORDER, steps=(replace(RESERVE, undo=None),))
    assert {"step undone", "undo failed", "undo reset"}.isdisjoint(
        Tally(Workflows([no_undo])).never_reached()
    )
    states = Tally(Workflows([no_undo])).states_never_reached()
    assert "order: step reserve Compensated, undone" not in states
    assert "order: order Error" not in states


def test_no_seed_leads_to_what_cannot_be_reached() -> None:
    defined = Workflows([*workflows(TIME), FULL])
    project, tally = Project.of(defined, ROOT), Tally(defined)
    for seed in range(40):
        tally.add(play(project, drawn(seed, defined)))
    possible = set().union(*map(reach.pairs, defined))
    assert set(tally.words) <= possible, set(tally.words) - possible
    states = {(one.name, *state) for one in defined for state in reach.step_states(one)}
    steps = {one for one in tally.states if one[1]}
    assert steps <= states, steps - states
    met = set().union(*tally.met.values())
    assert met <= {*CONDITIONS}
    assert len(met) > 30, {*CONDITIONS} - met


def test_a_full_queue_and_a_disabled_queue_are_two_conditions() -> None:
    played: list[Played] = []
    project = Project.of(Workflows([ORDER]), ROOT)
    for seed in range(60):
        plan = drawn(seed, project.workflows)
        if {"disabled", "nothing"} & {
            str(getattr(one, "what", "")).split(" ")[-1] for one in plan.items
        }:
            played.append(play(project, plan))
    struck = {one for each in played for one in each.struck}
    assert struck >= {"queue full", "queue disabled", "circuit open", "two supervisors"}
