"""Results of agents as JSON text as it is stored, within the limits of size and nesting."""

from __future__ import annotations

import json
from typing import Any

from sas.bounds import RESULT_BYTES_MAX
from sas.codec.payloads import encode_content
from sas.codec.strict import CONTENT_DEPTH_MAX, MalformedError, canonical, check_depth
from sas.ports import HeldError, PayloadCodec


def encode_result(value: Any, agent: str, codec: PayloadCodec | None = None) -> str:
    """Return the JSON text of a result as it is stored: encoded if there is a codec.

    Raises:
        HeldError: the agent has a mistake: JSON cannot hold the result, it nests too deep, it says
            that it is encoded already, or it is too large as it is stored.
        UnavailableError: the codec failed: put the message back.
    """
    try:
        text = _whole_json(value)
        check_depth(text, CONTENT_DEPTH_MAX)
    except (RecursionError, MalformedError):
        raise HeldError(
            f"agent {agent} returned JSON that nests deeper than {CONTENT_DEPTH_MAX} "
            "levels, and no queue would carry it: flatten it"
        ) from None
    except (TypeError, ValueError) as error:  # the errors name types and quote no value
        raise HeldError(
            f"agent {agent} returned what JSON cannot hold ({error}): return text, numbers, "
            "true, false, null, lists, and mappings whose keys are text"
        ) from None
    try:
        stored = encode_content(text, codec)
    except MalformedError as error:
        raise HeldError(f"agent {agent} returned what is refused: {error}") from None
    size = len(stored.encode())
    if size > RESULT_BYTES_MAX:
        raise HeldError(
            f"agent {agent} returned {size:,} bytes as they are stored, at most "
            f"{RESULT_BYTES_MAX:,} are kept: return a reference instead"
        )
    return stored


def whole_text(text: str) -> str:
    """Return text that UTF-8 can encode. The JSON of a service may hold half a character."""
    return text.encode("utf-8", "replace").decode()


def _whole_json(result: Any) -> str:
    """Return a result as JSON without half characters, which would make its reply malformed."""
    text = canonical(result)
    if "\\ud" not in text:
        return text
    return canonical(json.loads(whole_text(json.dumps(result, ensure_ascii=False))))
