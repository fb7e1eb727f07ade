"""Why an order is where it is: stories, what it waits for, attempts, journals with much waiting."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sas.domain.messages import JournalEntry, JournalWord
from sas.domain.order import AttemptError
from sas.domain.workflow import Workflows
from sas.operate import journal as journals
from sas.operate import why
from sas.ports import AwaitCallback, Message, RefusedError, StillRunning, TransientError
from tests.contract import cases
from tests.unit import actors_kit
from tests.unit.actors_kit import (
    CARE,
    CHAIN,
    DECLINED,
    QUEUES,
    Kit,
    command,
    kit,
    letter,
    night,
    order,
)
from tests.unit.domain_cases import due_at, story


def story_of(system: Kit, order_id: str = "O-1") -> str:
    return why.story(system.order(order_id), system.journal(order_id))


def waits_of(system: Kit, order_id: str = "O-1") -> why.Waits:
    order, journal = system.order(order_id), system.journal(order_id)
    agents = journals.agents_of(order, journal, system.business.workflows)
    return why.waits_for(order, system.clock.now(), agents=agents)


async def test_the_story_of_an_order_that_a_refusal_undid_names_it() -> None:
    system = kit(CHAIN)
    system.agents["payment"].then(RefusedError("card-declined", DECLINED))
    await system.submit()
    await system.drain()
    assert story_of(system) == (
        f"It was undone because a step failed: “{DECLINED}”. Nothing of it is left."
    )
    assert waits_of(system).kind is why.Awaited.NOTHING


async def test_the_story_of_an_order_that_an_operator_undid_has_the_reason() -> None:
    system = await night()
    assert story_of(system, "10251").startswith("It is complete: every step is done, ")
    message = command("undo", system.order("10251").seq, "w-1", "10251")
    await system.hand(replace(message, body=message.body[:-1] + b',"reason":"sold twice"}'))
    await system.drain()
    assert "because operator ann decided it (sold twice)" in story_of(system, "10251")


async def test_the_story_of_a_rejected_order_says_why() -> None:
    system = kit(CARE)
    dead = letter(Message(QUEUES.orders, "m-1", order(workflow="care")))
    await system.run(system.dead_letters.handle(dead))
    assert system.state() == "Rejected"
    assert story_of(system).startswith("It was rejected before any step began: ")
    assert waits_of(system).awaited == "Nothing: the application corrects it and submits it again."
    assert waits_of(system).kind is why.Awaited.NOTHING


async def test_each_request_of_a_step_is_an_attempt_with_its_end() -> None:
    system = kit(CARE)
    system.agents["payment"].then(*[TransientError("down")] * 1000)
    await system.submit(order(workflow="care"))
    await system.drain()
    await system.later(actors_kit.ALLOWED.total_seconds() + 1)
    await system.sweep()
    system.agents["payment"].script.clear()
    await system.drain()
    attempts = journals.attempts(system.order(), system.journal())
    rows = [
        (attempt.step, attempt.epoch, attempt.direction.value, attempt.outcome)
        for attempt in attempts
    ]
    assert rows == [
        (0, 1, "do", "done"),
        (1, 1, "do", "timed out"),
        (1, 2, "do", "done"),
    ]
    assert all(
        attempt.ended_at is not None and attempt.ended_at >= attempt.began_at
        for attempt in attempts
    )


async def test_a_reply_ends_only_the_attempt_of_its_own_epoch() -> None:
    system = kit(CHAIN)
    await system.submit()
    await system.step(QUEUES.scheduler)
    await system.hand(command("undo", system.order().seq))
    await system.drain()
    attempts = journals.attempts(system.order(), system.journal())
    assert [(attempt.direction.value, attempt.epoch, attempt.outcome) for attempt in attempts] == [
        ("do", 1, "?"),
        ("undo", 2, "done"),
    ]


async def test_an_attempt_that_is_excused_or_beside_another_step_is_still_out() -> None:
    system = kit(CHAIN)
    await system.submit()
    await system.step(QUEUES.scheduler)
    dispatched, complete_by = system.journal()[-1], system.order().complete_by
    assert complete_by is not None
    for word, at in (
        (JournalWord.WAITS_IN_QUEUE, complete_by),
        (JournalWord.RELEASED, complete_by),
        (JournalWord.STEP_RESET, dispatched.at),
    ):
        later = replace(dispatched, what=word, at=at, cause=None, messages=())
        attempts = journals.attempts(system.order(), [*system.journal(), later])
        assert [(attempt.outcome, attempt.ended_at) for attempt in attempts] == [("is out", None)]


def test_of_several_open_steps_that_which_is_due_first_is_waited_for_at_its_own_agent() -> None:
    both = story("two beside each other", routes=2).shutting(("b", 0))
    both.claim()
    (a, b), due = both.order.steps, both.now + timedelta(seconds=1)
    steps = (a, due_at(b, due))
    agents = journals.agents_of(both.order, [], Workflows([both.workflow]))
    assert agents == {0: "a", 1: "b-1"}
    waits = why.waits_for(replace(both.order, steps=steps), both.now, agents=agents)
    assert (waits.step, waits.at, waits.agent) == ("b", due, "b-1")


def test_a_bug_of_an_earlier_dispatch_is_not_waited_for() -> None:
    mended = story("one")
    mended.claim()
    mended.expired("a").claim()
    for epoch, kind in ((1, why.Awaited.AGENT), (2, why.Awaited.DEPLOY)):
        bug = AttemptError(
            epoch=epoch, attempt=1, kind=AttemptError.BUG, message="KeyError", at=mended.now
        )
        step = replace(mended.step("a"), last_error=bug)
        assert why.waits_of(step, mended.now).kind is kind


def rows(*words: JournalWord) -> list[JournalEntry]:
    at = actors_kit.kit(CHAIN).clock.now()
    return [
        JournalEntry(seq=n, at=at, what=word, by="host", commit_id=f"c{n}", cause=None, messages=())
        for n, word in enumerate(words, 1)
    ]


def test_a_long_wait_is_one_row_of_the_journal_and_nothing_else_is_folded() -> None:
    cycle = [JournalWord.CLAIMED, JournalWord.WAITING, JournalWord.RELEASED]
    journal = rows(
        JournalWord.SUBMITTED, *cycle * 100, JournalWord.CLAIMED, JournalWord.STEP_PROCESSED
    )
    folds = journals.folded(cases.submitted("O-1").after, journal)
    assert [len(fold.rows) for fold in folds] == [1, 301, 1]
    assert folds[1].words == "claimed, waiting: no call could begin, released"
    seqs = [row.seq for fold in folds for row in fold.rows]
    assert seqs == [entry.seq for entry in journal]
    journal = rows(*[JournalWord.CLAIMED, JournalWord.STEP_RESET] * 5, JournalWord.STEP_FAILED)
    assert len(journals.folded(cases.submitted("O-1").after, journal)) == len(journal)


def test_an_order_is_left_since_the_first_of_the_times_that_it_was_postponed_in_a_row() -> None:
    journal = rows(*[JournalWord.POSTPONED, JournalWord.CLAIMED], *[JournalWord.POSTPONED] * 3)
    journal = [replace(entry, at=entry.at + timedelta(hours=entry.seq)) for entry in journal]
    assert journals.left_since(journal) == journal[2].at
    assert journals.left_since(journal[:2]) is None


def test_a_span_is_printed_with_two_units_at_most() -> None:
    seconds = (0, 0.44, 59.9, 61, 3600, 90_000)
    texts = ["0 s", "0.4 s", "59 s", "1 min 1 s", "1 h", "1 d 1 h"]
    assert [why.spelled(timedelta(seconds=each)) for each in seconds] == texts


async def test_a_cancelled_order_waits_for_the_call_that_is_out_and_for_no_undo() -> None:
    system = kit(CHAIN)
    await system.submit()
    await system.step("scheduler")
    await system.hand(command("cancel", system.order().seq))
    assert story_of(system).endswith("and waits for the calls that are out.")
    waits = waits_of(system)
    assert waits.kind is why.Awaited.AGENT
    assert waits.then == "Then the step is undone."


async def test_a_step_that_goes_on_is_told_with_its_note_and_a_later_dispatch_without() -> None:
    system = kit(CHAIN)
    system.agents["stock"].then(StillRunning(timedelta(hours=1), "in progress."))
    await system.submit()
    await system.drain()
    waits = waits_of(system)
    assert waits.kind is why.Awaited.AGENT_AGAIN
    assert waits.awaited == "The agent of reserve, which goes on: “in progress”. It asks again."
    assert waits.then == "If its agent does not ask until then, the supervisor resets the step."
    system.bus.queues[QUEUES.agent("stock")].waiting.clear()  # its next look is lost
    await system.later(3600 + actors_kit.ALLOWED.total_seconds() + 1)
    await system.sweep()
    await system.step(QUEUES.scheduler)
    waits = waits_of(system)
    assert waits.awaited == "The agent of reserve: the call is out, request 2."


@pytest.mark.parametrize(
    ("outcome", "awaited"),
    [
        (
            StillRunning(timedelta(hours=1), "on its way back"),
            "The agent of the undo of reserve, which goes on: “on its way back”. It asks again.",
        ),
        (
            AwaitCallback(timedelta(days=1), "the van returns"),
            "The callback of the undo of reserve: “the van returns”.",
        ),
    ],
)
async def test_an_undo_that_goes_on_or_awaits_a_callback_is_named(
    outcome: StillRunning | AwaitCallback, awaited: str
) -> None:
    system = kit(CHAIN)
    system.agents["stock"].then({"ok": 1}, outcome)
    system.agents["payment"].then(RefusedError("card-declined", DECLINED))
    await system.submit()
    await system.drain()
    waits = waits_of(system)
    assert (waits.awaited, waits.at) == (awaited, system.order().complete_by)
    do, undo = journals.attempts(system.order(), system.journal())[::2]
    assert (do.outcome, undo.direction.value) == ("done", "undo")
