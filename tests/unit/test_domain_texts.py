"""Texts of others in what people read and paste."""

import ast
import json
import re
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import sas
from sas.domain.texts import command, is_visible, quoted, shortened, visible, visible_json
from tests.each import each

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
def test_a_visible_text_is_on_one_line(text: str) -> None:
    assert is_visible(visible(text))


def test_an_ordinary_text_stays_as_it_is() -> None:
    text = "Order 10248 für Ærø, 注文 ❤️ ⚠️ 👩‍👩‍👧 👍🏽 🏳️‍🌈 می‌خواهم क्‍ष"
    assert visible(text) == visible_json(text) == text
    assert is_visible(text)
    for hidden in ("pa\u200dy", "pa\u200cy", "pay\ufe0f", "❤\u200d", "\ufe0f", "❤\ufe0f\ufe0f"):
        assert not is_visible(hidden)


@given(st.text(), st.integers(1, 50))
def test_a_shortened_text_is_no_longer_than_its_limit(text: str, limit: int) -> None:
    assert len(shortened(text, limit)) <= limit
    assert len(text) > limit or shortened(text, limit) == text


def test_a_text_is_cut_at_the_edge_of_a_word() -> None:
    assert shortened("the card ends with 4711 and is expired", 26) == "the card ends with 4711…"
    assert shortened("x" * 30, 10) == "x" * 9 + "…"


@each("“”„‟❝❞❠〝〞〟\uff02🙶🙷🙸")
def test_no_mark_that_looks_like_its_end_ends_a_quotation(mark: str) -> None:
    assert quoted(f"no{mark}. All is repaired") == '“no". All is repaired”'


@given(st.text(max_size=400))
def test_a_quoted_text_cannot_end_its_quotation(text: str) -> None:
    inner = quoted(text)[1:-1]
    assert not {"“", "”"} & set(inner)
    assert is_visible(inner)


HOSTILE = ["$(touch pwned)", "`id`", "a;b", "a&b", "<>|", "it's", '"', "-rf", "--yes", "* ?", "{}"]


@each(HOSTILE)
def test_a_pasted_command_takes_each_argument_as_it_is(argument: str) -> None:
    line = command("printf '%s\\n'", argument)
    printed = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() in ([argument], ["--", argument])


def test_an_argument_that_could_be_an_option_comes_behind_the_end_of_options() -> None:
    assert command("sas show", "-x") == "sas show -- -x"
    assert command("sas show", "10248") == "sas show 10248"
    assert command("sas show", "10248", "-x") == "sas show -- 10248 -x"


def test_there_is_no_command_with_a_character_that_nobody_can_see() -> None:
    assert command("sas show", "NW\u200b1") == ""


def test_options_of_ours_come_behind_the_arguments_but_before_the_end_of_options() -> None:
    assert command("sas show", "10248", options="--journal") == "sas show 10248 --journal"
    assert command("sas show", "-x", options="--journal") == "sas show --journal -- -x"


PACKAGE = Path(sas.__file__).parent
COMMAND = re.compile(r"\bsas (messages )?[a-z]+ [^.;:,()]*$")
QUOTES_FOR_ITSELF = {"domain/texts.py", "environment.py", "cli/project.py"}
"""Modules that need shlex for a text that is no command of ``sas``."""


def before_texts_of_others(node: ast.AST) -> Iterator[str]:
    """Yield what stands before each placeholder of the f-strings and templates below a node.

    The arguments of ``command`` are left out, and texts of several lines, which are docstrings.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command":
        return
    if isinstance(node, ast.JoinedStr):
        text = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield text
            text += str(part.value) if isinstance(part, ast.Constant) else "-"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
        yield from re.findall(r"^([^{]*)\{", node.value)
    for child in ast.iter_child_nodes(node):
        yield from before_texts_of_others(child)


def test_no_other_place_composes_a_command_to_paste() -> None:
    """A command with an id is made by ``command``: an f-string or a template would not quote it."""
    places = [
        f"{file.relative_to(PACKAGE)}: {before}"
        for file in PACKAGE.rglob("*.py")
        for before in before_texts_of_others(ast.parse(file.read_text(encoding="utf-8")))
        if COMMAND.search(before)
    ]
    assert places == []
    modules = {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py")
               if "import shlex" in file.read_text(encoding="utf-8")}  # fmt: skip
    assert {name for name in modules if not name.startswith("deploy/")} == QUOTES_FOR_ITSELF


@given(
    st.recursive(
        st.none() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_that_is_shown_has_the_same_values_on_one_visible_line(value: object) -> None:
    for indent in (None, "\t"):
        line = visible_json(json.dumps(value, ensure_ascii=False, indent=indent))
        assert is_visible(line)
        assert json.loads(line) == value


def test_an_invisible_character_of_two_units_is_escaped_in_json_as_both() -> None:
    assert visible_json('"\U0001bca0"') == '"\\ud82f\\udca0"'
    assert visible_json('"\ud82f"') == '"\\ud82f"', "half of it too"
