"""An agent with a bug: its step waits, one alert tells of it, and a deploy mends everything."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from datetime import timedelta
from types import FunctionType
from typing import Any

import pytest

from sas.bounds import RESULT_BYTES_MAX
from sas.domain.order import AttemptError
from sas.domain.workflow import OnFailure, Workflow
from sas.engine.explained import explained
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, opened
from sas.operate import why
from sas.operate.rows import row_of
from sas.ports import AgentCall, HeldError, RefusedError, StillRunning, TransientError
from sas.testing.store import StoreFault
from tests.unit.actors_kit import (
    AGENTS,
    ALLOWED,
    CHAIN,
    QUEUES,
    Kit,
    agent_actor,
    command,
    keep_breaker,
    kit,
    submit,
)

STOCK = QUEUES.agent("stock")
ALWAYS = 10_000
PAUSE_MAX_S = AttemptError.PAUSE_MAX.total_seconds()
HOURS = 3
HOUR = timedelta(hours=1)
HOLD = replace(CHAIN, on_failure=OnFailure.HOLD)


async def reserve(call: AgentCall) -> Any:
    """Do what an adopter's agent does, with a bug."""
    return json.loads(call.order["room"])


BUG = (  # and its line
    "KeyError: “'room'” (tests/unit/test_failing_agent.py:"
    f"{reserve.__code__.co_firstlineno + 2} in reserve)"
)


async def failing(*workflows: Workflow, error: Any = reserve) -> Kit:
    """Return a kit with one order, whose first agent has a bug."""
    system = kit(*workflows or (CHAIN,))
    system.agents["stock"].then(*[error] * ALWAYS)
    await submit(system, "O-1", "chain")
    return system


def mended(system: Kit) -> None:
    for agent in system.agents.values():
        agent.script.clear()


async def passes(system: Kit, seconds: float, pace_s: float = 1.0) -> None:
    """Let time pass, with all functions at work."""
    for _ in range(int(seconds / pace_s)):
        await system.later(pace_s)
        await system.drain()
        await system.sweep()
        await system.drain()


async def last_error(system: Kit) -> AttemptError:
    record = await system.context.load("O-1")
    assert record is not None
    error = record.steps[0].last_error
    assert error is not None
    return error


def alerts(system: Kit) -> list[str]:
    return [alert.kind for alert in system.alerts()]


def calls(system: Kit, agent: str = "stock") -> list[str]:
    return [call.key for _, call in system.agents[agent].calls]


async def test_a_step_whose_agent_has_a_bug_waits_and_goes_on_after_the_deploy() -> None:
    system = await failing()
    await passes(system, 600, pace_s=10)
    assert system.states() == ["Processing", "Pending"]
    step = system.order().steps[0]
    assert (step.epoch, step.failure_count) == (1, 0)
    mended(system)
    await passes(system, PAUSE_MAX_S, pace_s=10)
    assert system.state() == "Processed"
    assert set(calls(system)) == {"O-1/reserve"}
    assert system.order().steps[0].epoch == 1
    assert system.bus.messages(QUEUES.rejected) == []


async def test_a_bug_in_the_undo_waits_too() -> None:
    system = kit(CHAIN)
    system.agents["payment"].then(RefusedError("declined", "no"))
    system.agents["stock"].then({"ok": True}, *[reserve] * ALWAYS)
    await submit(system, "O-1", "chain")
    await passes(system, 600, pace_s=10)
    assert system.state() == "Compensating"
    assert system.order().steps[0].failure_count == 0
    mended(system)
    await passes(system, PAUSE_MAX_S, pace_s=10)
    assert system.state() == "Compensated"
    assert "undo-failed" not in alerts(system)


async def test_a_bug_in_the_undo_of_an_older_key_keeps_pausing_though_other_undos_succeed() -> None:
    system = kit(HOLD)
    system.agents["stock"].then(RefusedError("sold-out", "none left"))
    await submit(system, "O-1", "chain")
    resubmit = command("resubmit", system.order().seq)
    body = json.loads(resubmit.body) | {"input": {"lines": [2]}}
    system.agents["stock"].then(*[{}, reserve] * ALWAYS)
    await system.hand(replace(resubmit, body=json.dumps(body).encode()))
    await system.drain()
    await passes(system, 600)
    _, *rounds = system.agents["stock"].calls
    assert [verb for verb, _ in rounds[:4]] == ["undo", "do"] * 2
    assert len(rounds) < 2 * 12
    assert alerts(system) == ["step-failed", "agent-failing"]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("inline", [(), AGENTS], ids=["queued", "inline"])
async def test_no_delivery_is_used_up_inline_or_not_and_in_a_redelivery(
    inline: tuple[str, ...], count: int
) -> None:
    system = kit(CHAIN, inline=inline)
    system.agents["stock"].then(*[reserve] * 3)
    await system.submit()
    await system.step(QUEUES.scheduler)
    request = system.bus.take(STOCK)
    assert request is not None
    assert await system.receive(request, count=count) is None
    await passes(system, 60)
    assert system.state() == "Processed"
    assert calls(system) == ["O-1/reserve"] * 4
    assert system.bus.messages(QUEUES.rejected) == []


# The incident


async def test_one_alert_for_all_orders_names_the_error_its_line_an_order_and_what_to_do() -> None:
    system = await failing()
    for number in range(2, 6):
        await submit(system, f"O-{number}", "chain")
    await passes(system, 300, pace_s=5)
    (alert,) = system.alerts()
    assert (alert.kind, alert.scope, alert.agent) == ("agent-failing", "agent stock", "stock")
    assert alert.text.startswith(f"Agent stock fails: {BUG}. Deploy a mended version. Its steps")
    assert "Nothing is undone meanwhile, and nothing must be resubmitted. It began" in alert.text
    assert "first seen by order “O-" in alert.text
    assert alert.command == "sas status"
    mended(system)
    await passes(system, PAUSE_MAX_S, pace_s=5)
    assert alerts(system) == ["agent-failing", "cleared"]
    assert {system.state(f"O-{number}") for number in range(1, 6)} == {"Processed"}


async def test_an_incident_whose_only_order_left_ends_by_itself() -> None:
    system = await failing()
    await passes(system, 20)
    await system.later(200)  # the next request comes late
    await system.sweep()
    assert alerts(system) == ["agent-failing"]
    await system.hand(command("cancel", system.order().seq))
    mended(system)  # of the undo; no call of the do comes again
    await passes(system, 1800, pace_s=10)
    assert system.state() == "Compensated"
    assert alerts(system) == ["agent-failing", "cleared"]


async def test_a_store_that_is_away_costs_only_the_alert_of_one_call() -> None:
    system = await failing()
    system.store.fail_next("write_shared", *[StoreFault.UNAVAILABLE] * 2)
    await passes(system, 20)
    assert alerts(system) == ["agent-failing"]
    assert system.order().steps[0].failure_count == 0


# What ends the wait otherwise


async def test_an_operator_undoes_an_order_that_waits_for_a_bug() -> None:
    system = await failing()
    await passes(system, 60, pace_s=10)
    mended_undo(system)
    await system.hand(command("undo", system.order().seq))
    await passes(system, PAUSE_MAX_S + 2 * ALLOWED.total_seconds(), pace_s=10)
    assert system.state() == "Compensated"


def mended_undo(system: Kit) -> None:
    """Mend the undo of an agent, and not its do."""
    agent = system.agents["stock"]
    agent.script.clear()

    async def undo(call: AgentCall) -> Any:
        direction, _ = agent.calls[-1]
        return {} if direction == "undo" else await reserve(call)

    agent.then(*[undo] * ALWAYS)


async def test_an_agent_that_fails_in_its_last_moment_is_called_again_without_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = kit(CHAIN)

    async def slow(call: AgentCall) -> Any:
        await system.clock.sleep(ALLOWED.total_seconds() - 1)
        return await reserve(call)

    async def keeps_it_slowly(*_: object) -> None:
        await system.clock.sleep(60)

    monkeypatch.setattr(system.store, "keep_error", keeps_it_slowly)
    system.agents["stock"].then(slow)
    await submit(system, "O-1", "chain")
    await passes(system, 30)
    assert system.state() == "Processed"
    assert "step reset" not in system.words()


async def test_an_error_in_halves_of_characters_is_told_in_whole_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # pytest-xdist cannot send a captured log with half a character.
    monkeypatch.setattr(logging.getLogger("sas.engine.failing_agent"), "disabled", True)
    system = await failing(error=ValueError("half a character: \ud800"))
    await passes(system, 20)
    assert "ValueError: “half a character: ?” (" in system.alerts()[0].text


async def test_the_reason_of_an_agent_that_holds_its_step_stands_without_a_line() -> None:
    reason = "the result of reserve lacks the member price: deploy a version that reads it."
    system = await failing(error=HeldError(reason))
    await passes(system, 60)
    error = await last_error(system)
    assert (error.kind, error.message) == ("held", reason)
    assert system.alerts()[0].text.startswith(
        f"Agent stock fails: “{reason[:-1]}”. Deploy a mended"
    )
    mended(system)
    await passes(system, PAUSE_MAX_S, pace_s=5)
    assert system.state() == "Processed"


@pytest.mark.parametrize("result", [{1, 2}, "x" * RESULT_BYTES_MAX], ids=["no JSON", "too large"])
async def test_a_result_that_cannot_be_stored_holds_the_step_and_undoes_nothing(
    result: Any,
) -> None:
    system = kit(CHAIN)
    system.agents["stock"].then(*[result] * ALWAYS)
    await submit(system, "O-1", "chain")
    await passes(system, 600)
    assert system.states() == ["Processing", "Pending"]
    step, error = system.order().steps[0], await last_error(system)
    assert (step.epoch, step.failure_count, error.kind) == (1, 0, "held")
    assert error.message.startswith("agent stock returned ")
    assert error.again_by == error.at + timedelta(minutes=5)
    assert replace(error, kind="timeout").again_by is None
    assert error.message in system.alerts()[0].text
    assert {verb for verb, _ in system.agents["stock"].calls} == {"do"}
    mended(system)
    await passes(system, PAUSE_MAX_S, pace_s=10)
    assert system.state() == "Processed"
    assert alerts(system) == ["agent-failing", "cleared"]
    assert set(calls(system)) == {"O-1/reserve"}


async def test_a_service_that_is_away_while_a_step_waits_for_a_bug_counts_no_failure() -> None:
    system = await failing()
    mended(system)
    policy = BreakerPolicy(failures_max=1, open_for=HOUR, open_for_max=HOUR)
    actor = agent_actor(system.context, "stock", system.agents["stock"], circuit=policy)
    system.actors["stock"] = actor
    await keep_breaker(system.store, opened(Breaker(), policy, system.clock.now(), "it is down"))
    await passes(system, 1800, pace_s=5)
    step = system.order().steps[0]
    assert (step.epoch, step.failure_count, step.process_state.value) == (1, 0, "Processing")
    assert len(system.words()) < 9, "it comes again when the circuit lets it"
    await passes(system, 1900, pace_s=5)
    assert system.state() == "Processed"


async def test_a_service_that_fails_after_the_deploy_counts_its_failures() -> None:
    system = await failing(HOLD)
    await passes(system, 10)
    mended(system)
    system.agents["stock"].then(*[TransientError("down")] * ALWAYS)
    await passes(system, 300, pace_s=5)
    step = system.order().steps[0]
    assert (step.epoch, step.failure_count, step.process_state.value) == (2, 2, "Error")


async def test_a_slot_that_comes_after_complete_by_makes_a_step_that_waits_for_a_bug_wait_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = await failing()
    mended(system)
    system.actors["stock"] = agent_actor(system.context, "stock", system.agents["stock"], limit=1)
    acquire = system.store.acquire_lease

    async def acquire_slowly(*lease: Any) -> bool:
        await system.clock.sleep(2 * ALLOWED.total_seconds())
        return await acquire(*lease)

    monkeypatch.setattr(system.store, "acquire_lease", acquire_slowly)
    await passes(system, 10)
    monkeypatch.undo()
    assert len(calls(system)) == 1
    await passes(system, 120)
    assert (system.state(), system.order().steps[0].epoch) == ("Processed", 1)
    assert alerts(system) == []


# What people read


async def test_why_and_show_name_the_error_its_line_the_next_call_and_what_ends_it() -> None:
    system = await failing()
    await passes(system, 60)
    record, now = await system.context.load("O-1"), system.clock.now()
    assert record is not None
    waits = why.waits_for(record, now, agents={0: "stock"})
    assert waits.awaited == f"A deploy that mends the agent of reserve: its call failed: {BUG}."
    assert waits.then == why.MENDED
    assert waits.todo == "Deploy a mended version of the agent."
    error = record.steps[0].last_error
    assert error is not None
    assert error.again_by is not None
    assert error.again_by > now
    assert waits.called_by == error.again_by
    assert waits.last_error == why.attempt_error(record.steps[0])


async def test_lists_say_that_a_step_waits_for_a_deploy_and_not_that_its_call_is_out() -> None:
    system = await failing()
    await passes(system, 60)
    record = await system.context.load("O-1")
    assert record is not None
    now = system.clock.now()
    awaited = f"A deploy that mends the agent of reserve: its call failed: {BUG}."
    assert row_of(record, now).why == awaited
    assert row_of(record, now + HOUR).why == "The supervisor, to look at reserve."


async def test_a_mended_step_that_goes_on_for_hours_waits_for_no_deploy() -> None:
    system = await failing()
    await passes(system, 10)
    mended(system)
    system.agents["stock"].then(StillRunning(timedelta(hours=2), "on the road"))
    await passes(system, 120)
    record = await system.context.load("O-1")
    assert record is not None
    waits = why.waits_for(record, system.clock.now())
    assert waits.awaited == "The agent of reserve, which goes on: “on the road”. It asks again."
    assert not waits.todo


# The line


def raised(work: Any) -> Exception:
    with pytest.raises(Exception) as info:  # noqa: PT011  any error
        work()
    error = info.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without this helper
    return error


def decode(text: str) -> Any:
    return json.loads(text)


def test_the_line_is_the_innermost_one_of_the_adopters_own_code() -> None:
    """``json`` raises some frames deeper."""
    text = explained(raised(lambda: decode("{")))
    assert text.startswith("JSONDecodeError: “Expecting property name")
    line = decode.__code__.co_firstlineno + 1
    assert text.endswith(f" (tests/unit/test_failing_agent.py:{line} in decode)")


@pytest.mark.parametrize("installed", ["site-packages", "dist-packages"])
def test_the_line_in_a_package_is_named_from_the_root_of_the_imports(installed: str) -> None:
    """The adopter's package is none of the library, though its name begins like it."""
    fails, calls = (
        compile(text, path, "exec")
        for text, path in (
            ("1 / 0", f"/lib/{installed}/x/y.py"),
            ("work()", "/app/sasha/__init__.py"),
        )
    )
    work = FunctionType(fails, {"__name__": "x.y"})
    text = explained(raised(FunctionType(calls, {"__name__": "sasha", "work": work})))
    assert text.endswith(" (sasha/__init__.py:1 in <module>)")


def test_without_code_of_the_adopter_the_innermost_line_is_named() -> None:
    error = raised(lambda: decode("{"))
    for _ in range(2):  # this module's
        assert error.__traceback__ is not None
        error.__traceback__ = error.__traceback__.tb_next
    assert re.search(r" \(json/decoder\.py:\d+ in \w+\)$", explained(error))


def test_a_long_error_keeps_its_line() -> None:
    def fails() -> None:
        raise ValueError("x" * 10_000)

    text = explained(raised(fails))
    assert len(text) == AttemptError.MESSAGE_LENGTH_MAX
    assert text.endswith(" in fails)")
    assert len(explained(HeldError("x" * 10_000))) == AttemptError.MESSAGE_LENGTH_MAX


def test_an_error_without_text_is_its_name() -> None:
    assert explained(TimeoutError()) == "TimeoutError (line not known)"
