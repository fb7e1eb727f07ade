"""Texts that other people wrote: ids, codes, refusals. They may be hostile, or only confusing.

Such a text is shown so that people see what is in it, and do not take it for ours.
"""

from __future__ import annotations

import re
import shlex

QUOTED_LENGTH_MAX = 300
"""Longest text of others within a sentence of ours."""
_EMOJI = "[\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u2bff\U0001f000-\U0001faff]\ufe0f?"
_JOINING = "[\u0620-\u06ff\u0900-\u0dff]"
_INVISIBLE = re.compile(
    f"(?P<ordinary>{_EMOJI}(?:\u200d{_EMOJI})*|(?<={_JOINING})[\u200c\u200d](?={_JOINING}))|"
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that a screen obeys or does not show: controls of C0 and C1, marks of direction, and
what Unicode calls default ignorable. They are ordinary, and stay, within an emoji and between
letters of Arabic and Indic scripts.
"""
_MARKS = re.compile("[\u201c-\u201f\u275d\u275e\u2760\u301d-\u301f\uff02\U0001f676-\U0001f678]")
"""Double quotation marks of Unicode, but for the plain one."""


def visible(text: str) -> str:
    """Return a text with its invisible characters escaped as in Python: it stays on one line."""
    return _INVISIBLE.sub(lambda match: match["ordinary"] or ascii(match[0])[1:-1], text)


def visible_json(text: str) -> str:
    """Return JSON on one line, with its invisible characters escaped: its values are the same."""
    return _INVISIBLE.sub(_in_json, text)


def _in_json(match: re.Match[str]) -> str:
    if match["ordinary"]:
        return match[0]
    if match[0] in "\t\n\r":  # JSON allows them only between its texts
        return " "
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))


def is_visible(text: str) -> bool:
    """Return whether a screen shows each character of a text, and obeys none."""
    return all(match["ordinary"] for match in _INVISIBLE.finditer(text))


def shortened(text: str, length_max: int) -> str:
    """Return a text of at most ``length_max`` characters.

    It is cut at the edge of a word, if there is one, and ends with an ellipsis then.
    """
    if len(text) <= length_max:
        return text
    cut = text[: max(length_max - 1, 0)]
    edge = max(cut.rfind(" "), cut.rfind("\n"))
    return (cut[:edge] if edge > length_max // 2 else cut).rstrip() + "…"


def quoted(text: str, length_max: int = QUOTED_LENGTH_MAX) -> str:
    """Return a text of others as a part of our sentence: “between marks”, on one line, cut.

    Marks that look the same within it become plain ones, so that it cannot end its quotation.
    """
    plain = _MARKS.sub('"', visible(text))
    return f"“{shortened(plain, length_max)}”"


def command(words: str, *arguments: str, options: str = "") -> str:
    """Return a command that people can paste.

    ``words`` and ``options`` are ours, the arguments may be anybody's. Each argument stays one
    argument and no option, whatever it holds. If one has an invisible character, nobody could see
    what is pasted: then there is no command (an empty text).
    """
    if not all(map(is_visible, arguments)):
        return ""
    places = [*map(shlex.quote, arguments)]
    if any(each.startswith("-") for each in arguments):
        words, options, places = f"{words} {options}".rstrip(), "", ["--", *places]
    return " ".join([words, *places, options]).rstrip()
