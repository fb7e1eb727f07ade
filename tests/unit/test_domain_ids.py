from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sas.domain import ids
from sas.domain.ids import InvalidIdError
from tests.each import each

CONTROL = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
SURROGATES = ["\ud800", "\udbff", "\udc00", "\udfff"]
moments = st.datetimes(timezones=st.just(UTC))


@each(["/", "\\", "#", "?", "|", *CONTROL, *SURROGATES])
def test_an_order_id_with_a_forbidden_character_is_refused_naming_it_and_its_place(
    bad: str,
) -> None:
    for text, place in ((f"ab{bad}cd", 2), (bad, 0), (f"{bad}x", 0), (f"x{bad}", 1)):
        with pytest.raises(InvalidIdError) as refused:
            ids.check_order_id(text)
        assert repr(bad) in str(refused.value)
        assert f"position {place}" in str(refused.value)


@each(["1", "order-1", "A b", "a.b:c;d,e'f\"g%h&i+j=k", "Żółć", "注文-1", "🧾", "x" * 100])
def test_an_order_id_of_other_characters_is_returned_as_it_is(good: str) -> None:
    assert ids.check_order_id(good) == good


def test_an_order_id_may_have_a_hundred_characters_and_no_more() -> None:
    assert len(ids.check_order_id("é" * 100)) == 100
    with pytest.raises(InvalidIdError, match="101 characters: at most 100"):
        ids.check_order_id("é" * 101)


def test_an_order_id_leaves_room_for_the_rest_of_a_message_id_as_service_bus_counts_it() -> None:
    longest = ids.check_order_id("\U0001f9fe" * 50)
    assert len(ids.message_id(longest, 10**9, 29).encode("utf-16-le")) // 2 <= 128
    with pytest.raises(InvalidIdError, match="102 characters: at most 100"):
        ids.check_order_id("\U0001f9fe" * 51)


def test_an_empty_order_id_is_refused() -> None:
    with pytest.raises(InvalidIdError, match="is empty"):
        ids.check_order_id("")


@each([" a", "a ", " ", "\u2003a", "a\u3000"])
def test_an_order_id_neither_begins_nor_ends_with_a_space(bad: str) -> None:
    with pytest.raises(InvalidIdError, match="begins or ends with a space"):
        ids.check_order_id(bad)


@each(["1", "NW-10248", "A b", "a.b:c@d+e=f,g~h_i-", "Żółć", "注文-1", "٣", "web-shop-7"])
def test_a_new_order_id_is_a_name(good: str) -> None:
    assert ids.check_new_order_id(good) == good


BAD_IN_NEW = ";$&><()`'\"{}[]%*!^\u200b\u202e\u3164"


@each(
    [f"a{bad}b" for bad in BAD_IN_NEW] + ["-a", ".", "..", "~a", "@a", "=a", "_a", "🧾"] + ["a  b"]
)
def test_a_new_order_id_that_a_shell_obeys_or_that_hides_is_refused(bad: str) -> None:
    assert ids.check_order_id(bad) == bad  # a stored order may have it
    with pytest.raises(InvalidIdError, match="is not a name: begin it with a letter or digit"):
        ids.check_new_order_id(bad)


@given(st.text(max_size=120))
def test_whatever_is_accepted_as_an_order_id_can_be_hashed_and_put_into_a_key(text: str) -> None:
    try:
        accepted = ids.check_order_id(text)
    except InvalidIdError:
        return
    assert accepted.encode("utf-8")
    assert not set(accepted) & set("/\\#?|")
    assert ids.shard_of(accepted, 16) in ids.all_shards(16)


def test_every_message_id_fits_what_service_bus_allows() -> None:
    longest = "x" * ids.ORDER_ID_LENGTH_MAX
    assert len(ids.message_id(longest, 10**12, 99)) <= 128
    assert len(ids.reply_id(longest, 29, "undo", 10**12)) <= 128


@each(["a", "a1", "reserve-stock", "a_b-c2", "x" * 40])
def test_a_name_of_lower_case_letters_digits_and_single_dashes_is_accepted(good: str) -> None:
    assert ids.check_name(good, "step") == good


@each(
    [
        "",
        "A",
        "1a",
        "-a",
        "a-",
        "_a",
        "a_",
        "a--b",
        "a b",
        "a/b",
        "ä",
        "a\n",
        "x" * 41,
    ]
)
def test_any_other_name_is_refused_saying_what_it_is_for(bad: str) -> None:
    with pytest.raises(InvalidIdError, match=r"agent .* is not a name: use lower-case letters"):
        ids.check_name(bad, "agent")


@each([("order-1", "01", "21"), ("A", "00", "d0"), ("ünï", "09", "29")])
def test_the_shard_of_an_order_is_the_same_for_ever(order_id: str, of_16: str, of_256: str) -> None:
    assert ids.shard_of(order_id, 16) == of_16
    assert ids.shard_of(order_id, 256) == of_256


@each([1, 3, 16, 256])
def test_orders_spread_evenly_over_all_shards(shards: int) -> None:
    each = 400
    counts = Counter(ids.shard_of(f"order-{n:06}", shards) for n in range(shards * each))
    assert sorted(counts) == ids.all_shards(shards)
    assert min(counts.values()) > each * 0.75
    assert max(counts.values()) < each * 1.25


def test_shards_sort_as_two_hex_digits() -> None:
    assert ids.all_shards(256) == sorted(ids.all_shards(256))
    assert len(ids.all_shards(1)) == 1
    assert (ids.all_shards(256)[0], ids.all_shards(256)[255]) == ("00", "ff")


@each([0, -1, 257])
def test_a_number_of_shards_that_two_hex_digits_cannot_name_is_refused(shards: int) -> None:
    with pytest.raises(InvalidIdError, match="between 1 and 256"):
        ids.all_shards(shards)


def test_a_cause_is_the_queue_and_the_envelopes_own_id() -> None:
    assert ids.cause_of("scheduler", "a/1") == "scheduler:a/1"
    assert ids.cause_of("orders", "1") != ids.cause_of("scheduler", "1")


@given(st.text())
def test_a_digest_is_32_hex_digits_whatever_a_sender_wrote(text: str) -> None:
    digest = ids.digest_id(ids.cause_of("orders", text))
    assert len(digest) == 32
    assert set(digest) <= set("0123456789abcdef")


@each(SURROGATES)
def test_a_digest_survives_half_a_character(text: str) -> None:
    assert len(ids.digest_id(text)) == 32


def test_a_digest_never_changes_and_differs_for_different_lists_of_parts() -> None:
    assert ids.digest_id("orders:1") == "2dc81b33267c2818da0e13bf55f84c86"
    assert ids.digest_id(b"orders:1") == ids.digest_id("orders:1")
    assert len({ids.digest_id(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",))}) == 3
    assert ids.digest_id("orders:2") != ids.digest_id("orders:1")


def test_message_ids_differ_by_order_commit_and_place() -> None:
    triples = [(o, s, i) for o in ("a", "b") for s in (1, 2, 12) for i in (0, 1, 2)]
    assert len({ids.message_id(*triple) for triple in triples}) == len(triples)
    assert ids.message_id("a", 12, 1) == "a/12/1"


def test_the_id_of_a_reply_is_the_same_for_every_repeat_of_one_dispatch() -> None:
    assert ids.reply_id("a", 3, "undo", 2) == "a/03/undo/2"


def test_the_key_of_a_remote_call_is_the_orders_and_the_steps_until_a_new_generation() -> None:
    assert ids.idempotency_key("a", "pay", 0) == "a/pay"
    assert ids.idempotency_key("a", "pay", 2) == "a/pay/2"


def test_keys_differ_by_order_step_and_generation() -> None:
    """Names contain no slash, and order ids contain no slash."""
    keys = [
        ids.idempotency_key(order, step, generation)
        for order in ("a", "a@b")
        for step in ("pay", "pay-b")
        for generation in (0, 1)
    ]
    assert len(set(keys)) == len(keys)


@each(["a", "urgent", "urgent-mail", "a-urgently", "not_urgent"])
def test_an_agent_may_be_named_as_anything_else_may(good: str) -> None:
    assert ids.check_agent(good) == good


@each(["mail-urgent", "a-urgent", "-urgent"])
def test_no_agent_has_the_name_of_the_queue_of_anothers_urgent_orders(bad: str) -> None:
    with pytest.raises(InvalidIdError, match=f"agent '{bad}' ends with '-urgent', .*another name"):
        ids.check_agent(bad)


def test_any_other_wrong_name_of_an_agent_is_refused_as_every_name_is() -> None:
    with pytest.raises(InvalidIdError, match="agent 'A' is not a name: use lower-case letters"):
        ids.check_agent("A")


@given(moments, moments)
def test_key_times_sort_as_their_moments_do(first: datetime, other: datetime) -> None:
    assert (ids.key_time(first) < ids.key_time(other)) == (first < other)
    assert len(ids.key_time(first)) == 27


@given(moments)
def test_a_key_time_gives_back_its_moment_to_the_microsecond(moment: datetime) -> None:
    assert ids.parse_key_time(ids.key_time(moment)) == moment


def test_a_time_in_any_other_form_is_refused() -> None:
    for text in ("2026-03-01T00:00:00Z", "2026-03-01T00:00:00.000000", "0001-01-01T00:00:00+05:00"):
        with pytest.raises(ValueError, match="is not a time as it is stored"):
            ids.parse_key_time(text)


def test_a_key_time_is_written_in_utc() -> None:
    local_time = datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert ids.key_time(local_time) == "2026-02-28T23:30:00.000000Z"
    assert ids.parse_key_time(ids.key_time(local_time)).tzinfo is UTC
