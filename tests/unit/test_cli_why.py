"""``sas why``: the one thing that an order waits for, over the actors in memory."""

from __future__ import annotations

import json

import pytest

from sas.domain.expire import DEPLOY_TIME
from sas.domain.ids import key_time
from sas.domain.messages import Verb
from sas.domain.workflow import Workflows
from sas.engine.delivery import DEPLOY_WAIT
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, opened
from sas.ports import Message, RefusedError
from tests.unit.actors_kit import CARE, CHAIN, KEYS, Kit, command, keep_breaker, kit, order
from tests.unit.cli_kit import Night, store_away
from tests.unit.cli_kit import night as night  # noqa: PLC0414  a fixture

DECLINED = RefusedError("card-declined", "the card was declined")


def submitted(night: Night, order_id: str = "A", workflow: str = "chain") -> None:
    """An order whose wake waits for a scheduler."""
    night.play(night.system.submit(order(order_id, workflow=workflow), f"m-{order_id}"))


def requested(night: Night, order_id: str = "A") -> None:
    """An order whose request waits for its agent."""
    submitted(night, order_id)
    night.play(night.system.step("scheduler"))


def fact(lines: list[str], name: str) -> str:
    return next(line.removeprefix(name).strip() for line in lines if line.startswith(f"{name} "))


def test_a_ready_step_waits_for_a_scheduler_and_its_wake_is_found(night: Night) -> None:
    submitted(night)
    result = night.sas("why", "A")
    assert result.code == 0
    assert result.lines[0] == "A is Pending. It is under way: 0 of 2 steps done."
    assert fact(result.lines, "waits for") == "A scheduler, to claim reserve."
    assert fact(result.lines, "message").startswith("in scheduler, ")
    assert fact(result.lines, "message").endswith(", 0 before it")
    assert fact(result.lines, "next look").startswith("the supervisor, 20")


def test_a_request_that_lies_behind_others_names_its_queue_and_its_agent(night: Night) -> None:
    for order_id in ("A", "B", "C"):
        requested(night, order_id)
    result = night.sas("why", "C", "--app", "tests.unit.test_cli_why:workflows")
    assert fact(result.lines, "waits for") == "The agent of reserve: the call is out, request 1."
    assert fact(result.lines, "step") == "reserve, attempt 1, FailureCount 0"
    assert fact(result.lines, "agent") == "stock"
    assert fact(result.lines, "circuit") == "closed: calls go out"
    assert fact(result.lines, "message").startswith("in agent-stock, ")
    assert fact(result.lines, "message").endswith(", 2 before it")


def workflows() -> Workflows:
    return Workflows((CHAIN, CARE))


def test_without_an_app_the_agent_is_found_by_the_queues_of_the_circuits(night: Night) -> None:
    requested(night)
    assert "or give --app MODULE" in fact(night.sas("why", "A").lines, "agent")
    since = night.system.clock.now()
    broken = opened(Breaker(), BreakerPolicy(), since, "stock: 503")
    night.play(keep_breaker(night.system.store, broken, "stock"))
    result = night.sas("why", "A")
    assert fact(result.lines, "agent") == "stock"
    assert fact(result.lines, "circuit").startswith("open since ")
    assert fact(result.lines, "circuit").endswith(": stock: 503")


def test_a_request_that_its_agent_took_is_in_no_queue(night: Night) -> None:
    requested(night)
    night.system.agents_die()
    result = night.sas("why", "A", "--app", "tests.unit.test_cli_why:workflows")
    assert fact(result.lines, "message").startswith("in no queue: its agent is handling it. If its")
    night.later(3600)
    late_result = night.sas("why", "A", "--app", "tests.unit.test_cli_why:workflows")
    assert fact(late_result.lines, "waits for") == "The supervisor, to look at reserve."
    assert "Check that the function app runs" in fact(late_result.lines, "do")


def test_a_queue_that_may_not_be_read_leaves_the_message_unknown(night: Night) -> None:
    requested(night)
    night.forbidden = {"*"}
    result = night.sas("why", "A", "--app", "tests.unit.test_cli_why:workflows")
    assert result.code == 0
    assert "you need the role Azure Service Bus Data Receiver" in fact(result.lines, "message")


def test_without_a_namespace_no_queue_is_read(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ServiceBus")
    requested(night)
    assert "no Service Bus namespace is configured" in night.sas("why", "A").out


def test_an_order_in_error_waits_for_you_and_the_commands_are_named(night: Night) -> None:
    night.fail("A", DECLINED)
    result = night.sas("why", "A")
    assert result.lines[0].startswith("A is Error. It stopped at pay: the card was declined")
    assert fact(result.lines, "waits for") == "You."
    assert fact(result.lines, "last error") == "card-declined: the card was declined"
    for verb in ("sas resubmit A", "sas skip A --step pay --input RESULT", "sas undo A"):
        assert verb in fact(result.lines, "do")
    assert fact(result.lines, "then") == "It goes on only after a command."


def test_a_finished_order_waits_for_nothing(night: Night) -> None:
    night.submit("A")
    result = night.sas("why", "A")
    assert fact(result.lines, "waits for") == "Nothing: it is finished."
    assert fact(result.lines, "do") == "nothing"


def test_as_json_it_is_one_object(night: Night) -> None:
    requested(night)
    (record,) = night.sas("why", "A", "--json", "--app", "tests.unit.test_cli_why:workflows").json
    assert (record["OrderID"], record["Step"], record["Agent"]) == ("A", "reserve", "stock")
    assert record["Message"]["Queue"] == "agent-stock"
    assert record["Message"]["Before"] == 0
    assert record["NextLook"].endswith("Z")
    night.fail("B", DECLINED)
    (record,) = night.sas("why", "B", "--json").json
    assert record["LastError"] == "card-declined: the card was declined"
    assert record["Message"] is None


def test_an_order_that_is_gone_a_wrong_id_and_a_store_without_right_are_one_sentence(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.sas("why", "gone").refused(1, "there is no order 'gone' here")
    night.sas("why", "a/b").refused(2, "order_id contains '/'")
    store_away(monkeypatch)
    night.sas("why", "A").refused(3, "you have no right")


def test_an_order_that_was_rejected_at_the_door_is_found_on_its_queue(night: Night) -> None:
    body = order("bad", workflow="nosuch")
    night.play(night.system.submit(body, "m-bad"))
    result = night.sas("why", "bad")
    assert result.code == 0
    assert result.lines[0].startswith("bad was rejected and never began: ")
    assert "sas messages resend rejected/" in fact(result.lines, "do")
    (record,) = night.sas("why", "bad", "--json").json
    assert (record["ProcessState"], record["SourceQueue"]) == ("Rejected", "orders")
    night.forbidden = {"orders-rejected"}
    night.sas("why", "bad").refused(3, "whether it was rejected is not known")


def test_an_order_that_no_one_has_taken_yet_is_found_in_the_queue_of_orders(night: Night) -> None:
    night.play(night.system.bus.send([Message("orders", "m-A", order("A"))]))
    result = night.sas("why", "A")
    assert result.code == 0
    assert result.lines[0] == "A was submitted, and has not begun."
    assert fact(result.lines, "message").startswith("in orders, ")
    assert "check that the function app runs" in fact(result.lines, "do")
    (record,) = night.sas("why", "A", "--json").json
    assert record["Message"]["Queue"] == "orders"
    night.forbidden = {"orders", "orders-urgent"}
    night.sas("why", "A").refused(1, "there is no order 'A' here")


def lacking_chain(night: Night) -> Kit:
    """A second instance, which lacks the workflow ``chain``."""
    return kit(CARE, instance="older", beside=night.system, deploy_wait=DEPLOY_WAIT)


@pytest.mark.parametrize("verb", ["why", "show"])
def test_an_order_that_waits_for_a_deploy_is_found_before_it_is_stored(
    night: Night, verb: str
) -> None:
    body = order("A", workflow="chain", workflow_version=7)
    night.play(lacking_chain(night).receive(Message("orders", "m-A", body)))
    since = night.system.clock.now()
    result = night.sas(verb, "A")
    assert result.code == 0
    assert result.lines[0] == "A was submitted, and has not begun."
    deploy = "A deploy that has chain version 7: no instance has it."
    assert fact(result.lines, "waits for") == deploy
    assert fact(result.lines, "message").startswith("scheduled in orders, ")
    assert fact(result.lines, "then").startswith("it is rejected about ")
    assert "submit it again" in fact(result.lines, "do")
    (record,) = night.sas(verb, "A", "--json").json
    assert (record["WaitsFor"], record["Message"]["Queue"]) == (deploy, "orders")
    assert record["RejectedAt"] == key_time(since + DEPLOY_WAIT)


@pytest.mark.parametrize("verb", ["why", "show"])
def test_an_order_whose_check_has_a_bug_waits_for_the_deploy_that_mends_it(
    night: Night, verb: str
) -> None:
    def check(_content: bytes) -> None:
        raise KeyError("cake")

    failing = kit(CHAIN, instance="failing", beside=night.system, chain=check)
    night.play(failing.receive(Message("orders", "m-A", order("A"))))
    line = check.__code__.co_firstlineno + 1
    cause = (
        "A deploy that mends its check: the check of saga chain fails: KeyError: 'cake' "
        f"(tests/unit/test_cli_why.py:{line} in check)."
    )
    result = night.sas(verb, "A")
    assert fact(result.lines, "waits for") == cause
    assert fact(result.lines, "do").startswith("deploy a mended version")
    (record,) = night.sas(verb, "A", "--json").json
    assert (record["WaitsFor"], record["RejectedAt"]) == (cause, None)


def test_an_order_of_an_application_is_found_in_the_queue_of_its_own(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAS_APPLICATIONS", "desk")
    night.put("orders-desk", order("desk-1"))
    assert fact(night.sas("why", "desk-1").lines, "message").startswith("in orders-desk, ")


def test_a_stored_order_whose_message_no_instance_takes_waits_for_a_deploy(night: Night) -> None:
    submitted(night)
    wake = night.system.bus.take("scheduler")
    assert wake is not None
    night.play(lacking_chain(night).receive(wake))
    result = night.sas("why", "A")
    assert fact(result.lines, "waits for") == "A deploy that has chain version 1."
    assert fact(result.lines, "message").startswith("scheduled in scheduler, ")
    assert fact(result.lines, "do").startswith("Deploy chain version 1 again as it was")
    (record,) = night.sas("why", "A", "--json").json
    assert record["WaitsFor"] == "A deploy that has chain version 1."


def test_an_order_that_the_supervisor_postponed_waits_for_a_deploy(night: Night) -> None:
    submitted(night)
    older = lacking_chain(night)
    night.system.bus.take("scheduler")
    for _ in range(2):
        night.later(DEPLOY_TIME.total_seconds() + 60)
        night.play(older.sweep())
    assert night.system.words("A")[-1] == "postponed"
    result = night.sas("why", "A")
    assert fact(result.lines, "waits for") == "A deploy that has chain version 1."
    postponed = night.system.journal("A")[-1]
    assert str(postponed.at)[:19] in fact(result.lines, "message")
    assert fact(result.lines, "next look").startswith("the supervisor, ")


def test_a_command_that_no_instance_takes_waits_for_a_deploy(night: Night) -> None:
    night.fail("A", DECLINED)
    older = kit(CHAIN, instance="older", beside=night.system, deploy_wait=DEPLOY_WAIT)
    message = command("resubmit", night.system.order("A").seq, "now", "A")
    night.play(older.receive(message))
    result = night.sas("why", "A")
    assert fact(result.lines, "waits for") == "A deploy that has care version 1."
    assert fact(result.lines, "message").startswith("resubmit by ann in scheduler, ")


def test_an_order_in_error_waits_for_the_command_that_lies_in_the_queue(night: Night) -> None:
    night.fail("A", DECLINED)
    seq = night.system.order("A").seq
    night.play(night.system.bus.send([command("resubmit", seq - 1, "late", "A")]))
    assert fact(night.sas("why", "A").lines, "waits for") == "You."
    night.play(night.system.bus.send([command("resubmit", seq, "now", "A")]))
    result = night.sas("why", "A")
    assert fact(result.lines, "waits for") == "A scheduler, to carry out a command."
    assert fact(result.lines, "message").startswith("resubmit by ann in scheduler, ")
    assert "check that the function app runs" in fact(result.lines, "do")
    (record,) = night.sas("why", "A", "--json").json
    assert (record["Message"]["Queue"], record["Message"]["Before"]) == ("scheduler", 0)


def test_the_list_of_orders_under_way_names_the_open_step(night: Night) -> None:
    requested(night)
    submitted(night, "B")
    lines = night.sas("list", "--state", "running").lines
    assert [line.split()[-4:] for line in lines[1:3]] == [
        ["Processing", "reserve", "is", "out"],
        ["Pending", "reserve", "is", "ready"],
    ]


def test_an_order_that_an_operator_cancelled_waits_for_the_call_that_is_out(night: Night) -> None:
    requested(night)
    order = night.system.order("A")
    night.play(night.system.hand(command(Verb.CANCEL.value, order.seq, order_id="A")))
    result = night.sas("why", "A")
    assert "because operator ann cancelled it" in result.lines[0]
    assert json.loads(night.sas("why", "A", "--json").out)["NextLook"]


def test_a_step_that_awaits_a_callback_says_so_everywhere_and_what_the_operator_can_do(
    night: Night,
) -> None:
    night.awaits("A")
    until = f"{night.system.order('A').steps[0].complete_by:%Y-%m-%d %H:%M:%SZ}"
    result = night.sas("why", "A")
    assert fact(result.lines, "waits for") == (
        f"The callback of reserve, until {until}: the manager approves."
    )
    assert fact(result.lines, "message") == "none: the callback comes by HTTP, and has not come"
    assert "`sas callback A --step reserve` shows where it is to be sent" in result.out
    sentence = f"reserve waits for the callback until {until}: the manager approves"
    assert sentence in night.sas("list", "--state", "running").out
    shown = night.sas("show", "A").out
    assert f"waits for the callback until {until}: the manager approves" in shown
    assert f"next: nothing to do: {sentence}; `sas callback A --step reserve`" in shown


def test_a_callback_that_came_is_found_in_its_queue(night: Night) -> None:
    night.awaits("A")
    order = night.system.order("A")
    token = KEYS.callback_of(order, order.steps[0]).token
    night.play(night.system.callbacks.answer(token, None, b'{"outcome": "done"}'))
    assert fact(night.sas("why", "A").lines, "message").startswith("in callbacks, ")
