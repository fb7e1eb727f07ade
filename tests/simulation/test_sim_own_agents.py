"""``sas sim --agents own``: what an adopter's agents do wrong is found, and nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sas.cli.application import named
from sas.cli.main import main
from sas.cli.sim import project_of
from sas.domain.messages import Verb
from sas.domain.workflow import OnFailure, Workflows
from sas.ports import Business
from sas.testing.own_agents import OwnApplication
from sas.testing.plan import Chance, Kill, Plan, Press, Submit, drawn
from sas.testing.play import Played, Project, play
from sas.testing.tally import Tally
from tests import own_businesses as own

ROOT = Path(__file__).parents[2]
ORDER = Submit(at_s=1.0, order_id="O-0", workflow="order", urgent=False, times=1)
LOST = Chance("lost_answer", 0.7)
UNDONE = Press(at_s=30.0, order_id="O-0", verb=Verb.UNDO, stale=False, edited=False, twice=False)


def project(agent: type[own.Careful], first: str = "stock") -> Project:
    def make() -> Business:
        return own.business(agent(), first)

    inputs = OwnApplication(make=make, orders={"order": [{"amount": 1}, {"amount": 2}]}, answers={})
    return Project.of(make().workflows, ROOT, inputs)


def played(agent: type[own.Careful], *items: Chance | Press | Kill, seeds: int = 4) -> list[Played]:
    own_project = project(agent)
    return [play(own_project, Plan(seed, 1, (ORDER, *items)), tell=True) for seed in range(seeds)]


def faults(plays: list[Played]) -> set[str]:
    return {violation.about for play in plays for violation in play.violations if violation.about}


@pytest.mark.parametrize("agent", [own.Careful, own.PutsByPath, own.WaitsForACallback])
def test_agents_that_do_right_hold_every_invariant(agent: type[own.Careful]) -> None:
    own_project = project(agent)
    for seed in range(5):
        assert play(own_project, drawn(seed, own_project.workflows)).violations == []
    plays = played(agent, LOST, UNDONE)
    assert [outcome.violations for outcome in plays] == [[]] * len(plays)
    assert any("its answer is lost" in line for outcome in plays for line in outcome.story)


@pytest.mark.parametrize(
    ("agent", "does"),
    [
        (own.FreshKeys, "sends a new key each time with POST /charges"),
        (own.NoKeys, "sends no Idempotency-Key with POST /charges"),
    ],
)
def test_a_step_that_is_not_idempotent_is_found(agent: type[own.Careful], does: str) -> None:
    assert f"order: step pay: its agent bank {does}" in faults(played(agent, LOST))


def test_an_agent_that_remembers_its_keys_in_memory_is_found_when_its_instance_dies() -> None:
    hangs, dies = Chance("hangs", 0.9), [Kill(float(at), None, False) for at in range(3, 40, 3)]
    assert faults(played(own.InMemory, LOST)) == set()
    new_key = "order: step pay: its agent bank sends a new key each time"
    left_by_its_undo = "order: the undo of step pay leaves its effect in force"
    fault, *others = sorted(faults(played(own.InMemory, LOST, hangs, *dies)))
    assert fault.startswith(new_key)
    assert set(others) <= {left_by_its_undo}, "the undo has a new key, too"


def test_a_key_that_two_calls_share_is_found() -> None:
    (fault,) = faults([play(project(own.OneKeyForTheOrder, "bank"), Plan(0, 1, (ORDER,)))])
    assert fault.endswith("its agent bank gives with POST /charges the key of another call")


def test_an_agent_that_swallows_the_errors_of_its_service_is_found_with_its_seed() -> None:
    sentence = "is Processed, and its service failed or refused it: its agent must raise that error"
    assert faults(played(own.SwallowsErrors)) == set(), "without a fault nothing shows"
    for chance in (Chance("refused", 1.0), Chance("transient", 1.0)):
        outcome = play(project(own.SwallowsErrors, "bank"), Plan(0, 1, (ORDER, chance)))
        assert faults([outcome]) == {
            f"order: step {step} {sentence}" for step in ("reserve", "pay")
        }
    (outcome,) = played(own.SwallowsErrors, Chance("transient", 0.9), seeds=1)
    assert outcome.ends == {("order", "Processed"): 1}
    assert [str(violation) for violation in outcome.violations] == [
        "invariant 10: order O-0 (Processed): pay has no effect"
    ]


def test_a_step_that_has_no_effect_at_any_service_is_advice_by_name() -> None:
    own_project = project(own.CallsNothing)
    (advice,) = advised(own_project)
    assert play(own_project, Plan(0, 1, (ORDER,))).violations == []
    assert advice.startswith(
        "order: step pay had no effect at any service in 6 of 6 processed orders. If it should"
    )
    assert advised(project(own.Careful)) == []


def test_a_step_that_an_operator_skipped_owes_no_effect() -> None:
    def make() -> Business:
        standard = own.business(own.Careful())
        workflows = (
            replace(workflow, on_failure=OnFailure.HOLD) for workflow in standard.workflows
        )
        return replace(standard, workflows=Workflows(workflows))

    inputs = OwnApplication(
        make=make, orders={"order": [{"amount": 1}]}, answers={"*": [{"number": 1}]}
    )
    own_project = Project.of(make().workflows, ROOT, inputs)
    skips = [
        Press(
            at_s=float(at), order_id="O-0", verb=Verb.SKIP, stale=False, edited=at > 60, twice=False
        )
        for at in (40, 80)
    ]
    outcome = play(own_project, Plan(0, 1, (ORDER, Chance("refused", 1.0), *skips)))
    assert outcome.violations == []
    assert outcome.ends == {("order", "Processed"): 1}
    assert sum(step.processed for step in outcome.steps.values()) == 0


def test_a_workflow_of_which_no_order_is_processed_is_named_in_the_last_line(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sim", "--agents", "own", "--project", str(directory), "--jobs", "1", "--seeds", "3"]
    main([*words, "--app", "tests.own_businesses:sleepy"])
    (last,) = (
        line for line in capsys.readouterr().out.splitlines() if line.startswith("3 seeds, ")
    )
    assert last.endswith(", and no order of order ended Processed")
    main([*words, "--app", "tests.own_businesses:careful"])
    assert "every invariant held\n" in capsys.readouterr().out


def advised(own_project: Project, *items: Press) -> list[str]:
    """Return the advice after some orders without a fault."""
    tally = Tally(workflows=own_project.workflows)
    for seed in range(6):
        tally.add(play(own_project, Plan(seed, 1, (ORDER, *items))))
    return list(tally.advice())


def test_an_undo_that_leaves_its_effect_is_found() -> None:
    (fault,) = faults(played(own.UndoesNothing, Chance("refused", 0.0), UNDONE))
    assert fault == "order: the undo of step pay leaves its effect in force"


def test_an_error_that_no_agent_may_raise_is_reported_with_its_line() -> None:
    (fault,) = faults(played(own.TakesAMemberThatIsNotThere, seeds=1))
    assert fault.startswith("order: step pay: its agent bank raised KeyError in do (own_bus")


def test_a_socket_past_the_event_loop_is_refused_with_what_to_do() -> None:
    (outcome,) = played(own.OpensASocket, seeds=1)
    assert any(
        "connects to ('127.0.0.1', 9) by a socket of its own: a simulation plays async agents "
        "whose HTTP calls go through HttpService" in str(violation)
        for violation in outcome.violations
    )


def sim(directory: Path, *arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sas.cli", "sim", "--agents", "own", "--project", ".", *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "orders.jsonl").write_text('{"order_id": "A-1", "amount": 3}\n')
    (tmp_path / "sim.json").write_text('{"orders": "orders.jsonl", "answers": {}}')
    return tmp_path


def test_a_story_with_random_keys_is_to_the_letter_the_same_in_every_process(
    directory: Path,
) -> None:
    arguments = "--app", "tests.own_businesses:fresh_keys", "--seed", "3"
    first, second = (sim(directory, *arguments, hash_seed=hash_seed) for hash_seed in "12")
    assert "POST /charges of agent bank, with key " in first.stdout
    assert first.stdout == second.stdout
    assert first.stderr == second.stderr


def test_the_command_names_the_step_that_is_not_idempotent_and_the_seed_that_shows_it(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = "tests.own_businesses:fresh_keys"
    words = ["sim", "--app", app, "--agents", "own", "--project", str(directory), "--json"]
    assert main([*words, "--seeds", "8", "--jobs", "1"]) == 1
    (advice,) = (
        line
        for line in json.loads(capsys.readouterr().out.splitlines()[-1])["Advice"]
        if "sends a new key" in line
    )
    sentence, again = advice.split(": seed ")
    assert sentence == (
        "order: step pay: its agent bank sends a new key each time with POST /charges"
    )
    seed, command = again.split(", ")
    where = f"--project {directory} --agents own --seed {seed}"
    assert command == f"sas sim --app {app} {where}"
    shown = project_of(named(app), directory, own_agents=True)
    story = play(shown, drawn(int(seed), shown.workflows), tell=True).story
    assert any(line.endswith(sentence) and "BROKEN: invariant 7" in line for line in story)


def test_local_settings_reach_the_business_and_its_agents_and_stay_out_of_the_environment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"BANK_URL": "/of-the-file", "MY_OWN": "of the file"}
    (directory / "local.settings.json").write_text(json.dumps({"Values": values}))
    monkeypatch.setenv("MY_OWN", "of the machine")
    before = dict(os.environ)
    own_project = project_of(named("tests.own_businesses:configured"), directory, own_agents=True)
    story = play(own_project, Plan(1, 1, (ORDER,)), tell=True).story
    assert any("POST /of-the-file" in line for line in story)
    assert own_project.application is not None
    with own_project.application.environment():
        assert os.environ["MY_OWN"] == "of the machine"
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("app", "text", "sentence"),
    [
        ("careful", None, "sim.json is missing"),
        ("careful", "{", "sim.json cannot be read"),
        ("careful", "[]", "sim.json is not a JSON object"),
        ("careful", "{}", 'sim.json: give {"orders": "FILE", "answers": {...}}'),
        (
            "careful",
            '{"orders": "none.jsonl"}',
            "none.jsonl', which sim.json names",
        ),
        ("careful", r'{"orders": "\u0000"}', "embedded null byte"),
        (
            "careful",
            '{"sevice_seconds": 1}',
            "sim.json has the unknown member 'sevice_seconds': give",
        ),
    ],
)
def test_what_own_agents_lack_is_one_clear_sentence(
    directory: Path, app: str, text: str | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "sim.json").unlink()
    if text is not None:
        (directory / "sim.json").write_text(text)
    words = ["sim", "--agents", "own", "--project", str(directory)]
    assert main([*words, "--app", f"tests.own_businesses:{app}"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
