"""Callbacks as they travel: the token that allows one, and the message that brings it.

A token is ``<claims>.<HMAC-SHA256 of them>``, both in base64url. It names an order (one submission
of it), a step, the generation of its key and when it expires, and is checked before anything in
it is read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import msgspec

from sas.bounds import RESULT_BYTES_MAX, RESULT_INLINE_BYTES_MAX
from sas.codec.internal import (
    FaultBody,
    Part,
    PayloadRefBody,
    RequestMessage,
    check_result,
    content_of,
    text_of,
)
from sas.codec.strict import (
    DEPTH_MAX,
    MalformedError,
    Reason,
    canonical,
    check_depth,
    convert,
    parse,
)
from sas.domain.ids import digest_id
from sas.domain.messages import Outcome
from sas.domain.order import Direction, Fault, Order
from sas.engine.hooks import CallbackIssuer
from sas.features.callbacks.rules import CallbackResult
from sas.ports import Callback, CallbacksOffError, Clock

TOKEN_LENGTH_MAX = 2000


CALLBACK_BYTES_MAX = RESULT_BYTES_MAX + 16 * 1024


KEY_LENGTH_MIN = 32


CONTENT_DEPTH_MAX = DEPTH_MAX - 2


_SIGNED_AS = b"sas-callback-1."
"""Signed along, so that no other use of the key could ever make a token."""


_BEARER = "bearer "


class CallbackBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """How a step ended, as it is POSTed to the callback endpoint.

    ``result`` is the step's, for *done*; ``error`` says why, for *refused*.
    """

    outcome: Literal["done", "refused"]
    result: Part = msgspec.UNSET
    error: FaultBody | None = None


class CallbackMessage(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """How a step ended, as it lies on the ``callbacks`` queue: with the token that allows it.

    ``result_ref`` stands for a large result that came by HTTP and is kept apart by now.
    """

    token: Annotated[str, msgspec.Meta(min_length=1, max_length=TOKEN_LENGTH_MAX)]
    outcome: Literal["done", "refused"]
    result: Part = msgspec.UNSET
    error: FaultBody | None = None
    result_ref: PayloadRefBody | None = None


class Claims(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True
):
    """What a token allows: to end this step, under this generation of its key.

    ``submission`` tells the order from a later one under the same id (None: a token from before
    there was any); ``alternative`` is the agent's name where it is not the step's first (it has
    keys of its own); ``expires`` is in seconds since 1970.
    """

    order_id: str
    step: int
    direction: Literal["do", "undo"]
    generation: int
    expires: int
    alternative: str | None = None
    submission: str | None = None

    @property
    def expires_at(self) -> datetime:
        """The moment from which on it allows nothing."""
        return datetime.fromtimestamp(self.expires, UTC)

    def check_order(self, order: Order | None) -> Order:
        """Return the order that the token is about.

        Raises:
            MalformedError: it is there no more, though another one may be under its id.
        """
        if order is None:
            raise MalformedError(Reason.UNKNOWN_ORDER, f"there is no order {self.order_id!r}")
        if self.submission not in {None, order.details.submission}:
            raise MalformedError(
                Reason.UNKNOWN_ORDER,
                f"the order {self.order_id!r} that the token is about is there no more, and "
                "another one has its id now",
            )
        return order


class ForgedError(Exception):
    """A token was not made by this system, or was changed since, or its key is gone."""

    def __init__(self) -> None:
        super().__init__("the token is none of this system's: send it unchanged, as it was given")


@dataclass(frozen=True, slots=True, repr=False)
class CallbackKeys:
    """The keys that tokens are made with: the first makes them, all are believed.

    ``url`` is the public address of the callback endpoint, if there is one.
    """

    keys: tuple[str, ...] = ()
    url: str | None = None

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self.keys)

    def issue(self, claims: Claims) -> str:
        """Return a token of these claims."""
        told = _base64(msgspec.json.encode(claims))
        return f"{told}.{_signature(self.keys[0], told)}"

    def issuer(self, clock: Clock) -> CallbackIssuer:
        """Return what gives out callbacks for requests, under one generation of their key."""

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
                    alternative=request.alternative,
                    submission=request.submission,
                )
                token = self.issue(claims)
                url = f"{self.url.rstrip('/')}/{token}" if self.url else None
                return Callback(token, url, claims.expires_at)

            return issue

        return issuer

    def read(self, token: str) -> Claims:
        """Return what a token allows, whether or not it has expired.

        Raises:
            ForgedError: it is none.
        """
        told, _, signature = token.partition(".")
        if len(token) > TOKEN_LENGTH_MAX or not self._is_signed(told, signature):
            raise ForgedError
        return msgspec.json.decode(base64.urlsafe_b64decode(told + "=="), type=Claims)

    def _is_signed(self, told: str, signature: str) -> bool:
        given = signature.encode("utf-8", "replace")
        expected = [_signature(key, told).encode() for key in self.keys]
        return sum(hmac.compare_digest(one, given) for one in expected) > 0


NO_KEYS = CallbackKeys()
"""No callback is given out or believed."""


def parse_body(body: bytes) -> CallbackBody:
    """Return what was POSTed.

    Raises:
        MalformedError: with a reason code and a sentence that says what to change.
    """
    _check_size(body)
    parse(body)
    said = convert(body, CallbackBody)
    _check_result(said.result)
    return said


def parse_message(body: bytes) -> CallbackMessage:
    """Return what lies on the ``callbacks`` queue; raises as ``parse_body`` does."""
    _check_size(body)
    parse(body)
    said = convert(body, CallbackMessage)
    _check_result(said.result, said.result_ref)
    return said


def read_message(body: bytes, keys: CallbackKeys) -> tuple[CallbackMessage, Claims]:
    """Return a message of the queue and what its token allows, expired or not.

    Raises:
        MalformedError: it is none, or its token is none of this system's.
    """
    message = parse_message(body)
    if not keys:
        raise MalformedError(Reason.CALLBACKS_OFF, str(CallbacksOffError()))
    try:
        return message, keys.read(message.token)
    except ForgedError as forged:
        raise MalformedError(Reason.FORGED_TOKEN, str(forged)) from None


def encode_message(message: CallbackMessage) -> bytes:
    """Return the bytes of a callback; the other half of ``parse_message``."""
    return msgspec.json.encode(message)


def own_id(message: CallbackMessage) -> str:
    """Return what a callback is remembered by: the same token and answer twice are one."""
    result = text_of(message.result)
    if message.result_ref is not None:
        result = message.result_ref.sha256
    elif result is not None and len(result.encode()) > RESULT_INLINE_BYTES_MAX:
        result = hashlib.sha256(result.encode()).hexdigest()
    said = [message.outcome, result]
    said += [message.error.code, message.error.message] if message.error else []
    text = canonical([message.token, *said])
    return f"callback/{digest_id(text)}"


def to_returned(message: CallbackMessage, claims: Claims, agents: Sequence[str]) -> CallbackResult:
    """Return a callback as the domain knows it; ``agents`` are the step's, by route."""
    named = claims.alternative
    route = 0 if named is None else agents.index(named) if named in agents else -1
    refused = message.outcome == Outcome.REFUSED.value
    error = message.error or FaultBody("refused", "the callback gave no reason")
    return CallbackResult(
        claims.order_id,
        claims.step,
        Direction(claims.direction),
        claims.generation,
        Outcome(message.outcome),
        None if refused else (content_of(message.result, message.result_ref) or "null"),
        Fault(error.code, error.message) if refused else None,
        route,
    )


def bearer(authorization: str | None) -> str | None:
    """Return the token of an Authorization header; None where it has none."""
    text = (authorization or "").strip()
    found = text[len(_BEARER) :].strip() if text.lower().startswith(_BEARER) else ""
    return found or None


def split_keys(text: str) -> tuple[str, ...]:
    """Return the keys of a setting, in their order.

    Raises:
        ValueError: one is too short to be a secret.
    """
    keys = tuple(key.strip() for key in text.split(","))
    if any(len(key) < KEY_LENGTH_MIN for key in keys):
        raise ValueError(
            f"each key has {KEY_LENGTH_MIN} characters or more, and a comma stands between two"
        )
    return keys


def _signature(key: str, told: str) -> str:
    text = _SIGNED_AS + told.encode("utf-8", "replace")
    return _base64(hmac.digest(key.encode(), text, "sha256"))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _check_size(body: bytes) -> None:
    if len(body) > CALLBACK_BYTES_MAX:
        raise MalformedError(
            Reason.TOO_LARGE,
            f"the callback has {len(body):,} bytes, at most {CALLBACK_BYTES_MAX:,} are taken: "
            "keep large results elsewhere and send a reference to them",
        )


def _check_result(result: Part, kept: PayloadRefBody | None = None) -> None:
    check_result(content_of(result, kept), RESULT_BYTES_MAX)
    check_depth(text_of(result) or "", CONTENT_DEPTH_MAX)
