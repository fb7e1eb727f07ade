"""Whole numbers in text from peers and people."""

_DIGITS_MAX = 15


def whole_number(text: str) -> int | None:
    """Read a number of at most 15 ASCII digits; return None for any other text.

    `str.isdigit` alone also accepts characters that `int` refuses, such as a superscript two.
    """
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
        return None
    return int(text)
