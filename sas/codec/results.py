"""Results of agents as JSON text as it is stored, within the limits of size and nesting."""

from __future__ import annotations

import json
from typing import Any

from sas.bounds import RESULT_BYTES_MAX
from sas.codec.payloads import encode_content
from sas.codec.strict import CONTENT_DEPTH_MAX, MalformedError, canonical, check_depth
from sas.domain.order import Fault, FaultCode
from sas.ports import PayloadCodec


def encode_result(value: Any, agent: str, codec: PayloadCodec | None = None) -> str | Fault:
    """Return the JSON text of a result as it is stored: encoded if there is a codec.

    Return a Fault if JSON cannot hold the result, or if the stored text is too large.
    """
    try:
        text = _whole_json(value)
        check_depth(text, CONTENT_DEPTH_MAX)
    except (RecursionError, MalformedError):
        return Fault(
            FaultCode.RESULT_TOO_DEEP,
            f"agent {agent} returned JSON that nests deeper than {CONTENT_DEPTH_MAX} "
            "levels, and no queue would carry it: flatten it",
        )
    except (TypeError, ValueError) as error:  # the errors name types and quote no value
        return Fault(
            FaultCode.RESULT_NO_JSON,
            f"agent {agent} returned what JSON cannot hold ({error}): return text, numbers, "
            "true, false, null, lists, and mappings whose keys are text",
        )
    try:
        stored = encode_content(text, codec)
    except MalformedError as error:
        return Fault(FaultCode.RESULT_NOT_PLAIN, f"agent {agent} returned what is refused: {error}")
    size = len(stored.encode())
    if size > RESULT_BYTES_MAX:
        return Fault(
            FaultCode.RESULT_TOO_LARGE,
            f"agent {agent} returned {size:,} bytes as they are stored, at most "
            f"{RESULT_BYTES_MAX:,} are kept: return a reference instead",
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
