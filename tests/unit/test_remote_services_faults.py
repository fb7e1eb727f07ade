"""Faults are a pure function: repeatable, at the rate asked for, and checked when made."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from samples.remote_services import Faults, FaultsError
from samples.services.faults import SLOW_KINDS, TRANSIENT_KINDS, Verb

KEYS = [f"NW-{number}/payment" for number in range(10_000)]


def test_the_same_seed_fails_the_same_calls_and_another_seed_other_calls() -> None:
    def kinds(seed: int) -> list[object]:
        faults = Faults(seed=seed, transient=0.3, slow=0.1)
        return [faults.of_attempt("stock", Verb.DO, key, 1) for key in KEYS[:500]]

    assert kinds(1) == kinds(1)
    assert kinds(1) != kinds(2)


def test_of_10_000_keys_the_asked_for_shares_fail() -> None:
    faults = Faults(transient=0.1, slow=0.05)
    kinds = Counter(faults.of_attempt("payment", Verb.DO, key, 1) for key in KEYS)
    transient = sum(kinds[kind] for kind in TRANSIENT_KINDS)
    slow = sum(kinds[kind] for kind in SLOW_KINDS)
    # Four standard deviations of a binomial; the draw is fixed, so this never flickers.
    assert abs(transient - 1000) < 4 * 30
    assert abs(slow - 500) < 4 * 22
    assert all(abs(kinds[kind] - 1000 / 6) < 4 * 13 for kind in TRANSIENT_KINDS)
    assert all(abs(kinds[kind] - 250) < 4 * 16 for kind in SLOW_KINDS)


def test_of_10_000_keys_the_asked_for_share_is_refused_for_good() -> None:
    faults = Faults(permanent=0.02, undo_permanent=0.1)
    refused = sum(faults.refuses("payment", Verb.DO, key) for key in KEYS)
    undo_refused = sum(faults.refuses("payment", Verb.UNDO, key) for key in KEYS)
    assert abs(refused - 200) < 4 * 14
    assert abs(undo_refused - 1000) < 4 * 30


def test_a_retry_a_verb_and_a_service_each_have_an_outcome_of_their_own() -> None:
    faults = Faults(transient=0.5, permanent=0.5, undo_permanent=0.5)

    def outcomes(service: str, verb: Verb, attempt: int = 1) -> list[object]:
        kinds = [faults.of_attempt(service, verb, key, attempt) for key in KEYS[:200]]
        return [*kinds, *(faults.refuses(service, verb, key) for key in KEYS[:200])]

    first = outcomes("stock", Verb.DO)
    assert first[:200] != outcomes("stock", Verb.DO, 2)[:200]
    for other in (outcomes("stock", Verb.UNDO), outcomes("payment", Verb.DO)):
        assert first[:200] != other[:200]
        assert first[200:] != other[200:]


def test_raising_a_rate_keeps_every_call_failing_that_failed_before() -> None:
    few, many = Faults(permanent=0.1), Faults(permanent=0.2)
    refused = [key for key in KEYS if few.refuses("stock", Verb.DO, key)]
    assert refused
    assert all(many.refuses("stock", Verb.DO, key) for key in refused)


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_attempts_past_the_bound_never_fail_transiently(attempt: int) -> None:
    faults = Faults(transient=0.5, slow=0.5, max_transient_attempts=2)
    fails = [faults.of_attempt("stock", Verb.DO, key, attempt) is not None for key in KEYS[:100]]
    assert fails == [attempt <= 2] * 100


def test_without_rates_nothing_fails_and_at_rate_one_everything_does() -> None:
    none, all_of_them = Faults(), Faults(transient=1.0, permanent=1.0)
    for key in KEYS[:200]:
        assert none.of_attempt("stock", Verb.DO, key, 1) is None
        assert not none.refuses("stock", Verb.DO, key)
        assert all_of_them.of_attempt("stock", Verb.DO, key, 1) in TRANSIENT_KINDS
        assert all_of_them.refuses("stock", Verb.DO, key)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transient": 1.5}, "transient is 1.5: give a number from 0 to 1"),
        ({"permanent": -0.1}, "permanent is -0.1: give a number from 0 to 1"),
        ({"slow": float("nan")}, "slow is nan"),
        ({"undo_permanent": "often"}, "undo_permanent is 'often'"),
        ({"transient": True}, "transient is True"),
        ({"transient": 10**400}, "transient is 1000"),
        ({"transient": 0.6, "slow": 0.5}, "transient 0.6 and slow 0.5 exceed 1 together"),
        ({"slow_seconds": float("inf")}, "slow_seconds is inf: give a number from 0 to 3600"),
        ({"retry_after_seconds": 0.5}, "retry_after_seconds is 0.5: give a whole number"),
        ({"seed": "lucky"}, "seed is 'lucky': give a whole number"),
        ({"max_transient_attempts": -1}, "max_transient_attempts is -1"),
        ({"max_transient_attempts": 1.5}, "max_transient_attempts is 1.5: give a whole number"),
        ({"transcient": 0.1}, "unknown fault 'transcient': known are seed, transient,"),
    ],
)
def test_unusable_faults_are_refused_with_what_is_allowed(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FaultsError) as error:
        Faults().changed(changes)
    assert str(error.value).startswith(message)


def test_changing_one_fault_leaves_the_others() -> None:
    faults = Faults(seed=3, transient=0.1, slow=0.2)
    assert faults.changed({"transient": 0}) == replace(faults, transient=0)
