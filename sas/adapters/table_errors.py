"""What the errors of Table Storage mean, and what to tell whoever has to do something."""

from __future__ import annotations

from http.client import HTTPException

import aiohttp
from azure.core.exceptions import (
    ClientAuthenticationError,
    DecodeError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)

LOST = (
    ServiceRequestError,
    ServiceResponseError,
    DecodeError,
    HTTPException,
    aiohttp.ClientError,
    OSError,
    TimeoutError,
)
"""No answer, or half of one: whether the request had its effect is unknown."""

BUSY = frozenset({408, 429, 500, 502, 503, 504})


def advice(error: BaseException) -> str:
    """Return the sentence that says what to look at."""
    status = getattr(error, "status_code", None)
    if isinstance(error, ClientAuthenticationError) or status in {401, 403}:
        return (
            "Check the key in the connection string, or the role on the account: the app's "
            "identity needs Storage Table Data Contributor, an operator's (az login) Storage Table "
            "Data Reader."
        )
    if code_of(error) in {"TableNotFound", "TableBeingDeleted"}:
        return "The table is gone: restart the app, which creates it, or restore it."
    if status in BUSY:
        return "It is busy or failing: look at the account's metrics for throttling."
    return "Check that the account (or Azurite) runs, its address in the settings and its firewall."


def code_of(error: BaseException) -> str | None:
    """Return the service's own error code; the SDK leaves it in the header alone for some."""
    code = getattr(error, "error_code", None)
    if code is None and isinstance(error, HttpResponseError) and error.response is not None:
        code = getattr(error.response, "headers", {}).get("x-ms-error-code")
    return None if code is None else str(getattr(code, "value", code))


def first_line(error: BaseException) -> str:
    """Return what the service or the SDK said, without request ids; the error's name if nothing."""
    lines = str(getattr(error, "message", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
