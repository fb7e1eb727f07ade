"""Texts of others in what people read and paste."""

import subprocess
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sas.domain.texts import command, is_visible, quoted, shortened, visible

SHOWN_MARKS = (
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
"""Marks of category Cf that a screen shows: signs of numbers and verses."""


def test_every_control_and_mark_that_unicode_does_not_show_is_escaped() -> None:
    hidden = [
        character
        for character in map(chr, range(0x110000))
        if unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp", "Cs"}
        and character not in SHOWN_MARKS
        and not 0x13430 <= ord(character) <= 0x1343F  # of hieroglyphs
    ]
    assert [each for each in hidden if is_visible(each)] == []
    assert all(is_visible(visible(each)) for each in hidden)


@given(st.text())
def test_a_visible_text_is_on_one_line_and_an_ordinary_one_stays_as_it_is(text: str) -> None:
    assert is_visible(visible(text))
    assert visible("Order 10248 für Ærø, 注文") == "Order 10248 für Ærø, 注文"


@given(st.text(), st.integers(1, 50))
def test_a_shortened_text_is_no_longer_than_its_limit(text: str, limit: int) -> None:
    assert len(shortened(text, limit)) <= limit
    assert len(text) > limit or shortened(text, limit) == text


def test_a_text_is_cut_at_the_edge_of_a_word() -> None:
    assert shortened("the card ends with 4711 and is expired", 26) == "the card ends with 4711…"
    assert shortened("x" * 30, 10) == "x" * 9 + "…"


@given(st.text(max_size=400))
def test_a_quoted_text_cannot_end_its_quotation(text: str) -> None:
    inner = quoted(text)[1:-1]
    assert not {"“", "”"} & set(inner)
    assert is_visible(inner)


HOSTILE = ["$(touch pwned)", "`id`", "a;b", "a&b", "<>|", "it's", '"', "-rf", "--yes", "* ?", "{}"]


@pytest.mark.parametrize("argument", HOSTILE)
def test_a_pasted_command_takes_each_argument_as_it_is(argument: str) -> None:
    line = command("printf '%s\\n'", argument)
    printed = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() in ([argument], ["--", argument])


def test_an_argument_that_could_be_an_option_comes_behind_the_end_of_options() -> None:
    assert command("sas show", "-x") == "sas show -- -x"
    assert command("sas show", "10248") == "sas show 10248"


def test_there_is_no_command_with_a_character_that_nobody_can_see() -> None:
    assert command("sas show", "NW\u200b1") == ""
