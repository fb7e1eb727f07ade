"""Callbacks as they come by HTTP: the token that allows one, and the body.

A token is ``<claims>.<HMAC-SHA256 of the claims>``, both in base64url. The claims name an order and
its submission, a step, the generation of its key, and when the token expires. The signature is
checked before any claim is read. What was checked goes on as a ``CallbackMessage``, without the
token.
"""

from __future__ import annotations

import base64
import hmac
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from sas.bounds import RESULT_BYTES_MAX
from sas.codec.internal import (
    CallbackMessage,
    FaultBody,
    Part,
    RequestMessage,
    check_result,
    content_of,
    text_of,
)
from sas.codec.strict import (
    CONTENT_DEPTH_MAX,
    MalformedError,
    Reason,
    canonical,
    check_depth,
    convert,
    parse,
)
from sas.domain.ids import digest_id
from sas.domain.messages import Outcome
from sas.domain.order import Direction, Fault, FaultCode, Order, StepRecord
from sas.engine.hooks import CallbackIssuer
from sas.features.callbacks.rules import CallbackResult
from sas.ports import Callback, CallbacksOffError, Clock

TOKEN_LENGTH_MAX = 2000
CALLBACK_BYTES_MAX = RESULT_BYTES_MAX + 16 * 1024
_SIGNED_AS = b"sas-callback-1."
"""Prefix of the signed text, so that no other use of the key can make a token."""
_BEARER = "bearer "


class CallbackBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """The body that is POSTed to the callback endpoint: how a step ended.

    ``result`` belongs to *done*, ``error`` to *refused*.
    """

    outcome: Literal["done", "refused"]
    result: Part = msgspec.UNSET
    error: FaultBody | None = None


class Claims(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a token allows: to end this step, under this generation of its key.

    ``submission`` differs from that of a later order under the same id.
    ``expires`` is in seconds since 1970.
    """

    order_id: str
    step: int
    direction: Literal["do", "undo"]
    generation: int
    expires: int
    submission: str

    @property
    def expires_at(self) -> datetime:
        """When the token expires."""
        return datetime.fromtimestamp(self.expires, UTC)


class ForgedError(Exception):
    """A token was not issued by this system, was changed since, or its key is gone."""

    def __init__(self) -> None:
        super().__init__("the token was not issued by this system: send it exactly as you got it")


@dataclass(frozen=True, slots=True, repr=False)
class CallbackKeys:
    """The keys of tokens. The first one signs, and all are accepted. None: callbacks are off.

    ``url`` is the public address of the callback endpoint, if there is one.
    """

    keys: tuple[str, ...] = ()
    url: str | None = None

    def __bool__(self) -> bool:
        """Return whether there is a key."""
        return bool(self.keys)

    def issue(self, claims: Claims) -> str:
        """Return a token with these claims."""
        payload = _base64(msgspec.json.encode(claims))
        return f"{payload}.{_signature(self.keys[0], payload)}"

    def issuer(self, clock: Clock) -> CallbackIssuer:
        """Return what issues callbacks. See ``sas.engine.hooks``."""

        def issuer(request: RequestMessage, generation: int) -> Callable[[timedelta], Callback]:
            def issue(within: timedelta) -> Callback:
                if not self:
                    raise CallbacksOffError
                claims = Claims(
                    order_id=request.order_id,
                    step=request.step,
                    direction=request.direction,
                    generation=generation,
                    expires=math.ceil((clock.now() + within).timestamp()),
                    submission=request.submission,
                )
                return self._callback(claims)

            return issue

        return issuer

    def callback_of(self, order: Order, step: StepRecord) -> Callback:
        """Return a callback for a step that awaits one: it expires at CompleteBy.

        Raises:
            CallbacksOffError: there is no key.
        """
        if not self or step.complete_by is None:
            raise CallbacksOffError
        claims = Claims(
            order_id=order.order_id,
            step=step.number,
            direction=step.direction.value,
            generation=step.call.generation,
            expires=math.ceil(step.complete_by.timestamp()),
            submission=order.details.submission,
        )
        return self._callback(claims)

    def _callback(self, claims: Claims) -> Callback:
        token = self.issue(claims)
        url = f"{self.url.rstrip('/')}/{token}" if self.url else None
        return Callback(token, url, claims.expires_at)

    def read(self, token: str) -> Claims:
        """Return the claims of a token, expired or not.

        Raises:
            ForgedError: its signature is wrong.
        """
        payload, _, signature = token.partition(".")
        if len(token) > TOKEN_LENGTH_MAX or not self._is_signed(payload, signature):
            raise ForgedError
        return msgspec.json.decode(base64.urlsafe_b64decode(payload + "=="), type=Claims)

    def _is_signed(self, payload: str, signature: str) -> bool:
        actual = signature.encode("utf-8", "replace")
        expected = [_signature(key, payload).encode() for key in self.keys]
        return sum(hmac.compare_digest(each, actual) for each in expected) > 0


def parse_body(body: bytes) -> CallbackBody:
    """Return the body that was POSTed.

    Raises:
        MalformedError: with a reason code and a sentence that says what to change.
    """
    if len(body) > CALLBACK_BYTES_MAX:
        raise MalformedError(
            Reason.TOO_LARGE,
            f"the callback has {len(body):,} bytes, at most {CALLBACK_BYTES_MAX:,} are accepted: "
            "store large results elsewhere and send a reference to them",
        )
    parse(body)
    callback = convert(body, CallbackBody)
    result = text_of(callback.result)
    check_result(result, RESULT_BYTES_MAX)
    check_depth(result or "", CONTENT_DEPTH_MAX)
    return callback


def message_of(token: str, claims: Claims, body: CallbackBody) -> CallbackMessage:
    """Return the message of a callback. The same token with the same answer has the same id."""
    error = [body.error.code, body.error.message] if body.error else []
    text = canonical([token, body.outcome, text_of(body.result), *error])
    return CallbackMessage(
        id=f"callback/{digest_id(text)}",
        order_id=claims.order_id,
        submission=claims.submission,
        step=claims.step,
        direction=claims.direction,
        generation=claims.generation,
        expires_at=claims.expires_at,
        outcome=body.outcome,
        result=body.result,
        error=FaultBody(body.error.code, body.error.message) if body.error else None,
    )


def check_order(message: CallbackMessage, order: Order | None) -> Order:
    """Return the order, if the callback is for this one.

    Raises:
        MalformedError: the order is gone, and perhaps another one has its id now.
    """
    if order is None:
        raise MalformedError(Reason.UNKNOWN_ORDER, f"there is no order {message.order_id!r}")
    if message.submission != order.details.submission:
        raise MalformedError(
            Reason.UNKNOWN_ORDER,
            f"the order {message.order_id!r} of this callback is gone, and another order has its "
            "id now",
        )
    return order


def to_callback_result(message: CallbackMessage) -> CallbackResult:
    """Return what a callback says, for a decision."""
    refused = message.outcome == Outcome.REFUSED.value
    error = message.error or FaultBody(FaultCode.REFUSED, "the callback gave no reason")
    return CallbackResult(
        order_id=message.order_id,
        step=message.step,
        direction=Direction(message.direction),
        generation=message.generation,
        outcome=Outcome(message.outcome),
        result=None if refused else (content_of(message.result, message.result_ref) or "null"),
        fault=Fault(error.code, error.message) if refused else None,
    )


def bearer(authorization: str | None) -> str | None:
    """Return the token of an Authorization header; None if the header has no token."""
    text = (authorization or "").strip()
    token = text[len(_BEARER) :].strip() if text.lower().startswith(_BEARER) else ""
    return token or None


def _signature(key: str, payload: str) -> str:
    text = _SIGNED_AS + payload.encode("utf-8", "replace")
    return _base64(hmac.digest(key.encode(), text, "sha256"))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
