"""Explains an unexpected error to people: its class, its text, and the line that raised it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from types import TracebackType

from sas.codec.results import whole_text
from sas.domain.order import AttemptError
from sas.domain.texts import quoted, shortened
from sas.ports import HeldError

_INSTALLED = {"site-packages", "dist-packages"}


def explained(error: Exception, length_max: int = AttemptError.MESSAGE_LENGTH_MAX) -> str:
    """Return ``KeyError: “'amount'” (orders/agents.py:42 in do)``; of a HeldError its reason."""
    reason = whole_text(str(error))
    if isinstance(error, HeldError):
        return shortened(reason, length_max)
    name, place = type(error).__name__, f" ({line_of(error)})"
    room = length_max - len(f"{name}: “”{place}")
    return f"{name}: {quoted(reason, room)}{place}" if reason else f"{name}{place}"


def line_of(error: Exception) -> str:
    """Return ``orders/agents.py:42 in do``: the innermost line of the adopter, or else of any."""
    places = list(_places(error.__traceback__))
    own_places = [place for place, is_own in places if is_own]
    return (own_places or [place for place, _ in places] or ["line not known"])[-1]


def _places(trace: TracebackType | None) -> Iterator[tuple[str, bool]]:
    """Yield each line of a traceback, and whether it is the adopter's own code.

    The path begins at the root of the imports, because the root differs between machines.
    """
    for frame, number in walk_tb(trace):
        path, module = Path(frame.f_code.co_filename), str(frame.f_globals.get("__name__"))
        names = module.count(".") + 1 + (path.stem == "__init__")
        package = module.partition(".")[0]
        is_library = package == "sas" or package in sys.stdlib_module_names
        place = f"{'/'.join(path.parts[-names:])}:{number} in {frame.f_code.co_name}"
        yield place, not (is_library or _INSTALLED & set(path.parts))
