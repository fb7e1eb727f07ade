"""What an agent returned, as it is kept: JSON in whole characters, within bounds."""

from __future__ import annotations

import json
from typing import Any

from sas.bounds import RESULT_BYTES_MAX
from sas.codec.strict import CONTENT_DEPTH_MAX, MalformedError, canonical, check_depth
from sas.domain.order import Fault

"""A result travels on inside ``results`` of the next request, two levels down."""


def encode_result(value: Any, agent: str) -> str | Fault:
    """Return what an agent returned as the JSON that is recorded; a fault where it cannot be."""
    try:
        text = _whole_json(value)
    except RecursionError:
        return _too_deep(agent)
    except (TypeError, ValueError) as wrong:  # they name types, and quote nothing of it
        return Fault(
            "result-no-json",
            f"agent {agent} returned what JSON cannot hold ({wrong}): return text, numbers, "
            "true, false, null, lists, and mappings whose keys are text",
        )
    if len(text.encode()) > RESULT_BYTES_MAX:
        return Fault(
            "result-too-large",
            f"agent {agent} returned {len(text):,} bytes, at most {RESULT_BYTES_MAX:,} "
            "are kept: return a reference instead",
        )
    if not _fits_deep(text):
        return _too_deep(agent)
    return text


def _too_deep(agent: str) -> Fault:
    return Fault(
        "result-too-deep",
        f"agent {agent} returned JSON that nests deeper than {CONTENT_DEPTH_MAX} "
        "levels, and no queue would carry it: flatten it",
    )


def whole_text(text: str) -> str:
    """Return text that UTF-8 can carry: a remote's JSON may have held half a character."""
    return text.encode("utf-8", "replace").decode()


def _fits_deep(text: str) -> bool:
    try:
        check_depth(text, CONTENT_DEPTH_MAX)
    except MalformedError:
        return False
    return True


def _whole_json(result: Any) -> str:
    """Return a result as JSON in whole characters; half of one would make its reply malformed."""
    text = canonical(result)
    if "\\ud" not in text:
        return text
    return canonical(json.loads(whole_text(json.dumps(result, ensure_ascii=False))))
