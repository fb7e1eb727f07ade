"""The simulation: every invariant holds whatever a seed draws, and a broken product is found."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sas.codec.external import Rejection
from sas.codec.internal import RequestMessage
from sas.codec.orders import Salvage
from sas.domain.order import Direction
from sas.domain.workflow import OnFailure, Step, Undo, Workflow, Workflows
from sas.engine.rejections import Rejections
from sas.engine.request_content import RequestContent
from sas.ports import AgentCall, Message
from sas.testing import system
from sas.testing.bus import MemoryBus
from sas.testing.clock import START
from sas.testing.invariants import Invariants
from sas.testing.plan import (
    NO_WORKFLOW,
    Away,
    Chance,
    Deploy,
    Forge,
    Item,
    Kill,
    Plan,
    Redrive,
    Submit,
    Unforwarded,
    dependencies,
    drawn,
)
from sas.testing.platform import PlatformFileError, host_rules, queue_rules
from sas.testing.play import play
from sas.testing.remote import ModelService
from sas.testing.shrink import shrunk
from sas.testing.system import Project, System
from sas.testing.violation import Violation
from tests.business import workflows
from tests.long import Seeds, ranges

ROOT = Path(__file__).parents[2]
TIME = timedelta(seconds=20)
UNDO = Undo(TIME)


def two_steps(*, undo: Undo | None = UNDO, time: timedelta = TIME) -> Workflows:
    steps = (
        Step("reserve", agent="stock", time_allowed=time, undo=undo),
        Step("pay", agent="bank", time_allowed=time, undo=UNDO),
    )
    return Workflows([Workflow("order", version=1, steps=steps, on_failure=OnFailure.UNDO)])


def submits(count: int, apart_s: float = 1.0) -> tuple[Submit, ...]:
    """Return submissions of orders O-0, O-1 and so on."""
    return tuple(
        Submit(at_s=1.0 + apart_s * n, order_id=f"O-{n}", workflow="order", urgent=False, times=1)
        for n in range(count)
    )


@pytest.fixture
def project() -> Project:
    return Project.of(workflows(timedelta(seconds=20)), ROOT)


@pytest.mark.parametrize("seeds", ranges(6, 75))
def test_every_invariant_holds_whatever_a_seed_draws(project: Project, seeds: Seeds) -> None:
    for seed in seeds:
        played = play(project, drawn(seed, project.workflows))
        assert played.violations == [], f"seed {seed}"
        submissions = [item for item in played.plan.items if isinstance(item, Submit)]
        with_workflow = [submission.workflow != NO_WORKFLOW for submission in submissions]
        assert played.orders == sum(with_workflow), f"seed {seed}"


def test_the_seeds_draw_every_kind_of_fault() -> None:
    plans = [drawn(seed, two_steps()) for seed in range(600)]
    items = [item for plan in plans for item in plan.items]
    assert {type(item).__name__ for item in items} >= {
        *("Submit", "Away", "Kill", "Press", "Forge", "Redrive", "Deploy", "Chance", "Apart"),
        *("Outside", "Unforwarded"),
    }
    names = {item.what for item in items if isinstance(item, Away)}
    assert names == set(dependencies(("bank", "stock")))
    assert max(item.lasts_s for item in items if isinstance(item, Away)) > 86_400
    assert {item.instance for item in items if isinstance(item, Kill)} >= {None, 0, 1, 2}
    assert {plan.instances for plan in plans} == {1, 2, 3}


@pytest.fixture
def forgetful_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let services forget their keys: each call has its effect once more."""
    do = ModelService._do

    async def twice(self: ModelService, call: AgentCall) -> object:
        self._ledger.of(call.key).in_force = False
        return await do(self, call)

    monkeypatch.setattr(ModelService, "_do", twice)


@pytest.mark.usefixtures("forgetful_service")
def test_a_service_without_idempotency_is_found_and_its_story_is_made_short() -> None:
    project = Project.of(two_steps(), ROOT)

    def fails(plan: Plan) -> bool:
        return bool(play(project, plan).violations)

    first = next(seed for seed in range(300) if fails(drawn(seed, project.workflows)))
    plan = drawn(first, project.workflows)
    short = shrunk(plan, fails)
    assert fails(short)
    assert len(short.items) < len(plan.items)
    for left_out in range(len(short.items)):
        rest = short.items[:left_out] + short.items[left_out + 1 :]
        shorter = replace(short, items=rest)
        assert not (shorter.of(Submit) and fails(shorter)), "nothing more can be left out"


def test_a_call_under_another_key_than_its_step_has_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call_of = RequestContent.call_of

    async def other(self: RequestContent, request: RequestMessage) -> AgentCall:
        call = await call_of(self, request)
        return replace(call, key=f"{call.key}-{request.epoch}")

    monkeypatch.setattr(RequestContent, "call_of", other)
    project = Project.of(two_steps(), ROOT)
    played = play(project, Plan(1, 1, submits(1)))
    first = played.violations[0]
    assert str(first) == "invariant 7: order O-0: O-0/reserve-1 is no key of step reserve"


def test_an_order_of_an_unknown_workflow_must_get_a_rejected_notification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = Project.of(two_steps(), ROOT)
    plan = Plan(
        1, 1, (Submit(at_s=1.0, order_id="O-0", workflow=NO_WORKFLOW, urgent=False, times=1),)
    )
    assert play(project, plan).violations == []

    async def keep(self: Rejections, rejection: Rejection, _sender: Salvage) -> None:
        await self.put_aside(rejection)

    monkeypatch.setattr(Rejections, "order", keep)
    (violation,) = play(project, plan).violations
    assert "got no notification that it is rejected" in violation.text


REDRIVEN: tuple[Item, ...] = (
    *submits(3),
    *(Chance("given_up", 0.3), Chance("store_throttled", 0.3)),
    *(Redrive(at_s, back, twice) for at_s, back, twice in ((60, True, True), (300, True, False))),
)


def test_what_was_given_up_and_sent_again_by_an_operator_is_carried_out_once() -> None:
    project = Project.of(two_steps(), ROOT)
    plays = [play(project, Plan(seed, 2, REDRIVEN), tell=True) for seed in range(12)]
    assert [outcome.violations for outcome in plays] == [[]] * len(plays)
    words: Counter[str] = Counter()
    for outcome in plays:
        words += outcome.words
    assert words["rejected"] > 0, "some orders were given up before they began"
    assert sum(outcome.ends["order", "Processed"] for outcome in plays) > 20


def test_an_order_that_a_redrive_loses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project.of(two_steps(), ROOT)
    put = MemoryBus._enqueue

    def lose(self: MemoryBus, message: Message) -> None:
        if not message.message_id.startswith("redrive/"):
            put(self, message)

    monkeypatch.setattr(MemoryBus, "_enqueue", lose)
    plays = [play(project, Plan(seed, 2, REDRIVEN)) for seed in range(12)]
    broken = [str(violation) for play in plays for violation in play.violations]
    assert any("lies on no queue: nobody can send it again" in text for text in broken)


UNFORWARDED: tuple[Item, ...] = (
    *submits(4),
    Chance("crash", 0.04),
    Unforwarded(from_s=10.0, queue=None, at_once=True, twice=True, die=2),
)


def test_dead_letters_that_no_queue_forwards_are_sent_again_and_every_order_ends() -> None:
    project = Project.of(two_steps(), ROOT)
    plays = [play(project, Plan(seed, 2, UNFORWARDED), tell=True) for seed in range(8)]
    assert [outcome.violations for outcome in plays] == [[]] * len(plays)
    assert sum(outcome.orders for outcome in plays) == 4 * len(plays)
    story = [line for outcome in plays for line in outcome.story]
    counts = [line.split("of dead letters: ")[1:] for line in story]
    assert sum(int(text.split()[0]) for texts in counts for text in texts) > 20
    assert any(line.endswith("the command resend of dead letters dies") for line in story)


def test_a_forged_dead_letter_fences_nothing() -> None:
    project = Project.of(two_steps(), ROOT)
    forged = tuple(Forge(1.0 + n / 10, "O-0") for n in range(30))
    played = play(project, Plan(1, 1, (*submits(1), *forged)), tell=True)
    assert played.violations == []
    assert not played.words["fenced"]
    assert played.ends["order", "Processed"] == 1


def test_a_message_that_is_given_up_while_its_handler_works_is_finished_by_one_of_them() -> None:
    project = Project.of(two_steps(), ROOT)
    ends: Counter[str] = Counter()
    for seed in range(4):
        chances = Chance("given_up", 0.3), Chance("late", 0.3), Chance("store_throttled", 0.3)
        plan = Plan(seed, 2, (*submits(6), *chances))
        played = play(project, plan)
        assert played.violations == []
        ends += played.words
    assert ends["fenced"] > 3


def test_an_order_whose_services_answer_no_call_ends_once_faults_by_chance_have_stopped(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "CHANCE_S", 900.0)
    played = play(project, Plan(1, 1, (*submits(1), Chance("lost_answer", 1.0))), tell=True)
    assert played.violations == []
    assert sum(played.ends.values()) == 1
    (ended,) = [line for line in played.story if "no fault happens by chance any more" in line]
    assert ended.startswith("00:15:00")


async def test_a_reply_after_complete_by_and_an_edit_without_an_undo_are_found() -> None:
    built = System(Project.of(two_steps(), ROOT), Plan(1, 1, ()))
    broken: list[Violation] = []
    invariants = Invariants(built, broken.append)
    invariants._complete_by["O-0", 0, Direction.DO, 1] = START
    body = {"kind": "reply", "order_id": "O-0", "step": 0, "direction": "do", "epoch": 1}
    reply = Message("scheduler", "O-0/00/do/1", json.dumps(body, separators=(",", ":")).encode())
    invariants._reply_is_sent(reply, START)
    assert broken == []
    invariants._reply_is_sent(reply, START + timedelta(seconds=1))
    invariants._older_are_undone(
        AgentCall(
            order_id="O-0", step="pay", key="O-0/pay/1", complete_by=START, order={}, results={}
        )
    )
    assert [violation.number for violation in broken] == [8, 7]


def test_the_deployed_rules_of_queues_and_host_are_played() -> None:
    queues = queue_rules(ROOT, ["payment"])
    described = json.loads((ROOT / "infra/queues.json").read_text())["kinds"]
    assert (
        queues["scheduler"].deliveries_max
        == described["internal"]["properties"]["maxDeliveryCount"]
    )
    assert queues["orders"].duplicate_window is None
    assert queues["dead-letters"].forwards_dead_letters_to is None
    host = json.loads((ROOT / "host.json").read_text())
    calls = host["extensions"]["serviceBus"]["maxConcurrentCalls"]
    assert host_rules(ROOT).calls_max == calls


def test_a_file_of_the_project_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "infra").mkdir()
    nested = "[" * 100_000
    properties_list = ["0", '{"maxDeliveryCount": "many"}', '{"lockDuration": "P99999999999D"}']
    kinds = [
        f'{{"kinds": {{"kept": {{"properties": {properties}}}}}}}' for properties in properties_list
    ]
    for text in ("{", nested, '{"kinds": []}', '{"kinds": {"orders": {}}}', *kinds):
        (tmp_path / "infra/queues.json").write_text(text)
        with pytest.raises(PlatformFileError, match=r"queues\.json"):
            queue_rules(tmp_path, ["payment"])
    for text in (nested, '{"functionTimeout": "9999999999999:00:00"}', '{"extensions": 1}'):
        (tmp_path / "host.json").write_text(text)
        with pytest.raises(PlatformFileError, match=r"host\.json cannot be read"):
            host_rules(tmp_path)


def test_a_project_without_a_list_gets_the_rules_that_it_would_be_deployed_with(
    tmp_path: Path,
) -> None:
    rules = queue_rules(tmp_path, ["payment"])
    assert rules == queue_rules(ROOT, ["payment"])
    assert rules["agent-payment"].duplicate_window is not None


def test_a_deploy_in_the_middle_brings_one_more_version_beside_two() -> None:
    (order,) = two_steps()
    definitions = Workflows([replace(order, steps=order.steps[:1]), replace(order, version=2)])
    project = Project.of(definitions, ROOT)
    played = play(project, Plan(1, 2, (*submits(6, 10.0), Deploy(20.0))))
    assert played.violations == []
    assert played.orders == 6


async def test_orders_of_the_older_version_go_on_under_their_own_rules_after_a_deploy() -> None:
    plan = Plan(1, 1, (*submits(8, 5.0), Deploy(20.0)))
    built = System(Project.of(two_steps(), ROOT), plan)
    await built.world.run(built.at_rest)
    await built.close()
    orders = [stored.order for stored in built.store.orders.values()]
    assert {order.details.version for order in orders} == {1, 2}
    times = {built.rules_of(order).steps[0].time_allowed for order in orders}
    assert times == {TIME, 1.5 * TIME}
