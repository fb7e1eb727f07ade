"""What an operator may give with a command: a name, a reason, the input of a step, a refusal.

In each function ``place`` is where the operator gave it, such as an option. Errors name it.
"""

from __future__ import annotations

from sas.bounds import EDITED_UNITS_MAX, utf16_units
from sas.codec.internal import REASON_LENGTH_MAX
from sas.codec.payloads import encode_content, is_encoded
from sas.codec.strict import CONTENT_DEPTH_MAX, MalformedError, check_depth, parse
from sas.domain.order import Fault
from sas.operate.errors import UsageError
from sas.ports import PayloadCodec

OPERATOR_NAME_LENGTH_MAX = 100


def checked_input(body: bytes, place: str, codec: PayloadCodec | None) -> str:
    """Return the JSON text that an operator gives to a step, encoded if there is a codec.

    Raises:
        UsageError: the text is not JSON, is nested too deeply, or is too large.
    """
    try:
        parse(body)
        text = body.decode().strip()
        check_depth(text, CONTENT_DEPTH_MAX)
        text = text if is_encoded(text) else encode_content(text, codec)
    except MalformedError as error:
        raise UsageError(f"{place}: {error}") from None
    if utf16_units(text) > EDITED_UNITS_MAX:
        form = ", encrypted," if is_encoded(text) else ""
        raise UsageError(f"{place}{form} has over {EDITED_UNITS_MAX:,} characters: give less")
    return text


def check_text(text: str, place: str, *, limit: int = REASON_LENGTH_MAX) -> str:
    """Return a text on one line, as the journal keeps it: a reason, for example.

    Raises:
        UsageError: it has more than ``limit`` characters, or cannot be printed.
    """
    line = " ".join(text.split())
    if len(line) > limit:
        raise UsageError(f"{place} has {len(line)} characters: at most {limit} are kept")
    if not line.isprintable():  # a lone surrogate is not printable either
        raise UsageError(f"{place} is {line!r}: give text that can be printed")
    return line


def check_name(by: str, place: str) -> str:
    """Return an operator's name as the journal keeps it.

    Raises:
        UsageError: it is empty or too long, or cannot be printed.
    """
    name = check_text(by, place, limit=OPERATOR_NAME_LENGTH_MAX)
    if not name:
        raise UsageError(f"{place} is {by!r}: give a name that can be printed")
    return name


def refusal_by_hand(code: str, text: str) -> Fault:
    """Return the fault of a step that an operator refuses in the place of its callback.

    Raises:
        UsageError: the code is empty, or one of the two is too long or cannot be printed.
    """
    code = check_text(code, "the code of the refusal")
    if not code:
        raise UsageError("the code of the refusal is empty: give one, such as not-approved")
    text = check_text(text, "the text of the refusal")
    return Fault(code, text or "an operator refused it, and gave no reason")
