"""Whole numbers as peers and people write them."""

#: Host processes on one machine: each takes about 60 MB and a second of CPU to start.
PROCESSES_MAX = 64
_DIGITS_MAX = 15


def whole_number(text: str) -> int | None:
    """Read a number of at most fifteen digits, 0 to 9 only; None where it is none.

    `str.isdigit` alone also takes digits that `int` does not, such as a raised two.
    """
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
        return None
    return int(text)
