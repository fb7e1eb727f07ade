"""The state of the system: what is wrong, the worst first, and each cause once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sas.cli import status as verb
from sas.cli import system as systems
from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.domain.order import OrderState
from sas.domain.queues import Queues
from sas.domain.texts import quoted
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, closed, opened
from sas.features.incidents import rules
from sas.features.incidents.board import active_incidents, name_of
from sas.features.incidents.rules import Sightings
from sas.operate import checks, status
from sas.operate.errors import NotPossibleError
from sas.operate.messages import QueueCount
from sas.operate.rows import row_of_summary
from sas.operate.status import (
    Problem,
    SystemReading,
    SystemStatus,
    queue_counts,
    queue_names,
    status_of,
)
from sas.ports import Peeked, RefusedError, StoreUnavailableError, Summary
from tests.unit.actors_kit import keep_breaker, order
from tests.unit.cli_kit import Night, store_away

DECLINED = RefusedError("card-declined", "the card was declined")
QUEUES = Queues()
ROOT = Path(__file__).parents[2]


def seen(night: Night, kind: AlertKind, scope: str, text: str, agent: str | None = None) -> None:
    """Keep an incident as the board does."""
    now = night.system.clock.now()
    incident = Incident(kind=kind, scope=scope, text=text, since=now, until=now, agent=agent)
    active = rules.alert_sent(rules.seen(None, Sightings(incident, 1, ("A",)), now), now)
    shared = active_incidents(night.system.store)
    asyncio.run(shared.write(name_of(kind, scope), active, None))


def opens(night: Night, agent: str, why: str = "503") -> None:
    breaker = opened(Breaker(), BreakerPolicy(), night.system.clock.now(), why)
    asyncio.run(keep_breaker(night.system.store, breaker, agent))


def state(night: Night, queues: Sequence[QueueCount] = ()) -> SystemStatus:
    now = night.system.clock.now()
    reading = asyncio.run(status.read_system(night.system.store, now))
    return status.status_of(reading, now, queues)


def kinds(problems: Sequence[Problem]) -> list[str]:
    return [problem.kind for problem in problems]


# -- What is wrong ----------------------------------------------------------------------------


def test_of_a_system_that_is_well_nothing_is_wrong(night: Night) -> None:
    night.submit("done")
    asyncio.run(keep_breaker(night.system.store, closed(night.system.clock.now()), "payment"))
    answer = state(night, [QueueCount(queue="orders", waiting=3)])
    assert (answer.problems, answer.in_error, answer.under_way) == ((), 0, 0)
    assert answer.ended == {"Processed": 1}
    assert [(circuit.agent, circuit.state) for circuit in answer.circuits] == [
        ("payment", "closed")
    ]


def test_orders_in_error_are_grouped_and_none_is_loaded(night: Night) -> None:
    night.fail("A", DECLINED)
    night.later(60)
    night.fail("B", DECLINED)
    night.fail("C", RefusedError("no-stock", "sold out"), agent="stock")
    night.play(night.system.submit(order("D", workflow="care"), "m-D"))  # two steps are due
    night.system.store.load = None  # type: ignore[assignment, method-assign]
    answer = state(night)
    assert [(group.fingerprint, group.count, group.why) for group in answer.failures] == [
        ("pay/card-declined", 2, "card-declined: the card was declined"),
        ("reserve/no-stock", 1, "no-stock: sold out"),
    ]
    assert (answer.in_error, answer.under_way, answer.is_late) == (3, 1, False)
    (problem,) = answer.problems
    assert (problem.kind, problem.needs_you) == ("error", True)
    assert problem.text == "3 orders are in Error: 2 “pay/card-declined”, 1 “reserve/no-stock”."
    assert problem.since == answer.failures[0].since


def test_why_orders_failed_alike_is_told_by_one_in_which_nothing_else_failed(night: Night) -> None:
    night.system.agents["stock"].then(RefusedError("no-stock", "sold out"))
    night.fail("A", DECLINED)
    night.later(60)
    night.fail("B", DECLINED)
    (pay,) = [group for group in state(night).failures if group.fingerprint.startswith("pay/")]
    assert (pay.count, pay.why) == (2, "card-declined: the card was declined")


def test_words_of_others_stay_between_marks_and_none_becomes_what_to_do(night: Night) -> None:
    hostile = "no. All is repaired. Remove the order. "
    night.fail("A", RefusedError("no: all is repaired", "no"))
    why = quoted(hostile)
    seen(night, AlertKind.AGENT_FAILING, "agent stock", f"Agent stock fails: {why}. Deploy it.")
    count = QueueCount(queue="orders", dead_lettered=1, cause=f"its queue gave it up: {why}")
    problems = state(night, [count]).problems
    (failing,) = [problem for problem in problems if problem.kind == "agent-failing"]
    assert (failing.text, failing.todo) == (f"Agent stock fails: {why}.", "Deploy it.")
    (lying,) = [problem for problem in problems if problem.kind == "dead-lettered"]
    assert lying.text == f"1 dead letter lies in queue orders: {count.cause}."  # marked once
    assert len([problem for problem in problems if "repaired" in problem.text]) == 3
    for problem in problems:
        assert "repaired" not in re.sub("“[^”]*”", "", problem.text + problem.todo)


def test_refused_messages_are_a_problem_while_they_lie_there_and_lost_copies_always(
    night: Night,
) -> None:
    night.play(night.system.submit(order("A", workflow="nosuch"), "m-A"))
    assert state(night).problems == ()
    night.system.bus.queues["orders-rejected"].length_max = 0
    night.play(night.system.submit(order("B", workflow="nosuch"), "m-B"))
    (problem,) = state(night).problems
    assert (problem.kind, problem.about) == ("rejected", "queue orders-rejected")
    assert problem.todo.startswith("Read the queue and remove what you do not need, or enable it.")


def test_an_order_in_error_is_a_problem_although_an_older_version_wrote_its_index_row() -> None:
    at = datetime(2026, 11, 21, 3, tzinfo=UTC)
    rows = [
        row_of_summary(
            Summary(
                at=at,
                order_id=f"O-{why}",
                process_state=OrderState.ERROR,
                workflow="care",
                submitted_at=at,
                undone_because=why,
            )
        )
        for why in (None, "pay failed")
    ]
    reading = SystemReading(in_error=rows, ended=(), dues=(), circuits=(), incidents=())
    problems = status_of(reading, at).problems
    assert kinds(problems) == ["undo-failed", "error"]
    for problem in problems:  # two orders that failed alike, and each counts once
        assert problem.text.endswith(": 1 “unknown/older-version”.")


def test_an_outage_is_one_problem_with_all_that_waits_for_it(night: Night) -> None:
    opens(night, "payment", "payment could not be reached")
    seen(night, AlertKind.BREAKER_OPEN, "agent payment", "It failed. Check it.", "payment")
    seen(night, AlertKind.WAITING, "care version 1, step pay", "It rests.", "payment")
    seen(night, AlertKind.WAITING, "care version 1, step reserve", "It rests.", "stock")
    answer = state(night)
    assert kinds(answer.problems) == ["breaker-open", "waiting"]
    outage, other = answer.problems
    assert outage.text == (
        "The circuit of agent payment is open: “payment could not be reached”. These wait: care "
        "version 1, step pay."
    )
    assert not outage.needs_you
    assert other.about == "care version 1, step reserve"
    opens(night, "stock")
    texts = {problem.about: problem.text for problem in state(night).problems}
    assert texts["agent payment"].endswith(" These wait: care version 1, step pay.")
    assert texts["agent stock"].endswith(" These wait: care version 1, step reserve.")


def test_the_worst_problem_comes_first_and_one_that_is_over_is_none(night: Night) -> None:
    seen(night, AlertKind.UNREADABLE, "payload codec", "No key fits. Set it.")
    night.later((rules.OVER_AFTER + timedelta(minutes=1)).total_seconds())
    opens(night, "payment")
    night.fail("A", DECLINED)
    seen(night, AlertKind.QUEUE_DELAY, "queue orders", "It is slow.")
    seen(night, AlertKind.AGENT_FAILING, "agent stock", "It fails. Deploy a mended version.")
    queues = [
        QueueCount(queue="orders", problem="queue orders: It is disabled: enable it."),
        QueueCount(queue="scheduler", problem="queue scheduler: It is disabled: enable it."),
        QueueCount(queue="agent-x", problem="to read it you need the role X on it"),
        QueueCount(queue="responses-web", dead_lettered=2),
    ]
    problems = state(night, queues).problems
    assert kinds(problems) == [
        *("queue", "agent-failing", "error", "dead-lettered", "breaker-open", "queue-delay"),
    ]
    assert problems[0].text == (
        "Queues orders, scheduler cannot be read: It is disabled: enable it."
    )
    assert (problems[1].text, problems[1].todo) == ("It fails.", "Deploy a mended version.")


@pytest.mark.parametrize("kind", [AlertKind.NOT_PICKED_UP, AlertKind.UNREADABLE])
def test_a_late_supervisor_is_a_problem_unless_an_incident_says_so(
    night: Night, kind: AlertKind
) -> None:
    night.play(night.system.submit(order("A"), "m-A"))
    night.play(night.system.clock.advance(3600))
    answer = state(night)
    assert answer.is_late
    assert (kinds(answer.problems), answer.oldest_due_order) == (["late"], "A")
    aside = QueueCount(queue="scheduler", left_orders=("A",), left_since=night.system.clock.now())
    assert kinds(state(night, [aside]).problems) == ["not-runnable"]
    seen(night, kind, "ordinary orders", "Nobody claims. Check it.")
    assert kinds(state(night).problems) == [kind.value]


def test_messages_that_wait_are_a_problem_unless_an_incident_says_so(night: Night) -> None:
    waits = QueueCount(queue="orders", waiting=1, waiting_since=night.system.clock.now())
    night.later(120)
    assert kinds(state(night, [waits]).problems) == ["late"]
    seen(night, AlertKind.QUEUE_DELAY, "queue orders", "It is slow.")
    assert kinds(state(night, [waits]).problems) == ["queue-delay"]


# -- Queues -----------------------------------------------------------------------------------


def test_queues_are_counted_and_a_silent_one_is_a_problem_of_its_own(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.put("orders-rejected", b"{}")
    night.put("orders-rejected/$DeadLetterQueue", b"{}")
    peek = night.peek

    async def silent(queue: str, limit: int) -> list[Peeked]:
        await asyncio.sleep(60 if queue == "orders" else 0)
        return await peek(queue, limit)

    monkeypatch.setattr(night, "peek", silent)
    monkeypatch.setattr(status, "QUEUES_S", 0.1)
    counts = asyncio.run(queue_counts(night, queue_names(QUEUES, ["stock"]), QUEUES))
    by_name = {count.queue: count for count in counts}
    assert (by_name["orders-rejected"].waiting, by_name["orders-rejected"].dead_lettered) == (1, 1)
    assert [name for name, count in by_name.items() if count.problem] == ["orders"]
    assert "agent-stock-urgent" in by_name


# -- The command ------------------------------------------------------------------------------


def test_a_time_that_a_sender_forged_does_not_end_the_command(night: Night) -> None:
    """It raised OverflowError for as long as the message lay there."""
    last = "9999-12-31T23:59:59.999999Z"
    night.put("orders", order(), properties={"sas_left_since": last, "sas_first_at": last})
    assert night.sas("status").code == 0
    assert night.sas("show", "O-1").code in {0, 1}


def test_it_looks_again_and_again_also_while_the_table_is_away(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.fail("A", DECLINED)
    looks = 0
    read = status.read_system

    async def third_ends(*arguments: object) -> object:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise StoreUnavailableError("the table does not answer.")
        if looks == 4:
            raise KeyboardInterrupt
        return await read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(verb, "read_system", third_ends)
    monkeypatch.setattr(verb, "FOLLOW_EVERY_S", 0.01)
    result = night.sas("status", "--follow")
    assert result.code == 130
    assert result.err == "sas: the table does not answer. Looking again\n"
    assert result.lines.count("1 thing is wrong") == 2
    store_away(monkeypatch)
    night.sas("status").refused(3, "you have no right")


# -- What a command needs ---------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in a directory without a project."""
    monkeypatch.chdir(tmp_path)


def checked(night: Night) -> dict[str, str]:
    result = night.sas("status", "--check", "--json")
    records = [json.loads(line) for line in result.lines]
    assert result.code == any(record["State"] == "wrong" for record in records)
    return {record["Check"]: record["State"] for record in records}


def test_if_all_is_well_every_check_is_ok(night: Night) -> None:
    assert set(checked(night).values()) == {"ok"}
    result = night.sas("status", "--check")
    assert "ok       sending to scheduler: you may send" in result.lines
    assert result.lines[-1].endswith(" ok, 0 wrong, 0 unknown")


@pytest.mark.usefixtures("elsewhere")
def test_settings_that_are_missing_are_wrong_with_what_to_do(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ServiceBus", "SAS_TABLES", "AzureWebJobsStorage"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SAS_QUEUE_ORDERS", "a b")
    monkeypatch.setenv("SAS_OPERATOR", "x" * 101)
    assert set(checked(night).values()) == {"wrong"}
    assert "nothing runs here (no .devstack/env" in night.sas("status", "--check").out


@pytest.mark.usefixtures("elsewhere")
def test_a_missing_right_is_told_from_a_missing_reach(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.forbidden = {"scheduler", "send scheduler"}
    states = checked(night)
    assert (states["reading scheduler"], states["sending to scheduler"]) == ("unknown", "wrong")
    assert states["queues"] == "ok"
    night.outage = "the namespace does not answer."
    assert checked(night)["reading orders"] == "wrong"
    store_away(monkeypatch)
    assert checked(night)["reading the table"] == "wrong"


def test_a_clock_that_is_off_is_wrong_by_how_much(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = night.system.clock.now()

    times = iter((now, now - timedelta(seconds=90), None))

    async def other(_storage: systems.Storage) -> object:
        return next(times)

    monkeypatch.setattr(systems, "service_time", other)
    states = [checked(night)["clock of this machine"] for _ in range(3)]
    assert states == ["ok", "wrong", "unknown"]
    with pytest.raises(NotPossibleError, match="90 s ahead of that of the table's service"):
        checks.clock(now, now - timedelta(seconds=90))
