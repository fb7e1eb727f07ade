"""HTTP calls to a remote service: one attempt each, and what its answer means.

``HttpService.request`` makes one attempt. ``sas.actors.agent`` retries it with the same idempotency
key until the step's CompleteBy. So each outcome must say whether the call may have had an effect:

1. **2xx with JSON, or without a body**: done. With a body that is no JSON the effect is certain and
   the result is not known, so the call is retried with the same key: the service answers again.
   JSON that does not fit the type that the function asks for is a mistake in that type, or a new
   version of the service: HeldError. The step waits, and nothing is undone.
2. **A definite refusal** (a 4xx that is not about the service, or a redirect, because none is
   followed): it had no effect, and a retry would be refused again. RefusedError, with the end of
   the problem's type (RFC 9457) as its code.
3. **Everything else may have had an effect**: 5xx, 429, a slow or broken connection, an answer with
   Retry-After. TransientError. A retry is safe, because the service recognises the key.
4. **404 or 410 to a DELETE**: nothing is left to undo, so it is done. Every step that was ever
   dispatched is undone, also one whose call never arrived.

TransientError also tells the circuit breaker about the service: ``answered`` if it works and only
this call must wait, ``error_answer`` if it answered with an error, perhaps because of this one
order. docs/your-own-workflow.md has the table.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

import msgspec

from sas.adapters.clock import http_date
from sas.codec.results import whole_text
from sas.codec.strict import SALVAGE_DEPTH_MAX, MalformedError, check_depth, convert
from sas.domain.texts import shortened
from sas.ports import HeldError, RefusedError, TransientError
from sas.telemetry.tracing import carried

if TYPE_CHECKING:
    import ssl

    import aiohttp

ANSWER_BYTES_MAX = 1024 * 1024
REASON_LENGTH_MAX = 500
RETRY_AFTER_MAX = timedelta(days=1)
_TRANSIENT = frozenset({408, 425, 429})
_NOTHING_THERE = frozenset({404, 410})
_CODE = re.compile(r"[\w.~/?#@!$&*+=%-]+")
"""A code of a service is one word: it stands in sentences of ours."""
"""The answers to a DELETE of something that does not exist."""
_UNWELL = frozenset({408, 429, 502, 503, 504})
"""The status codes that are about the service. Any other code may be about this one call."""


R = TypeVar("R")


class Keyed(Protocol):
    """A call with an idempotency key."""

    def key_for(self, method: str) -> str:
        """Return the value of the header ``Idempotency-Key`` of a request."""


class ServiceOptions(TypedDict, total=False):
    """The options of ``HttpService``.

    ``name`` is what errors call it: without it, the setting without ``_URL``. ``attempt_seconds``
    is the time for one attempt: 30 without it. ``headers`` is called before each attempt and
    returns the headers that sign in: an API key, a token. ``tls`` replaces the usual TLS context,
    for example by one with a client certificate.
    """

    name: str
    attempt_seconds: float
    headers: Callable[[], Awaitable[Mapping[str, str]]]
    tls: ssl.SSLContext


class HttpService:
    """One remote service. ``setting`` names the setting that has its base address, or is one.

    Safe to share. Its session opens on first use.
    """

    def __init__(self, setting: str, **options: Unpack[ServiceOptions]) -> None:
        self.setting = setting
        self._name = options.get("name") or setting.removesuffix("_URL").lower().replace("_", "-")
        self._headers = options.get("headers")
        self._tls = options.get("tls")
        self._attempt_seconds = options.get("attempt_seconds", 30.0)
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            WeakKeyDictionary()
        )

    @property
    def has_setting(self) -> bool:
        """Whether its address is in a setting."""
        return not self.setting.startswith(("http://", "https://"))

    def address(self) -> str:
        """Return the base address, without a slash at its end.

        Raises:
            LookupError: the setting is not an http(s) address.
        """
        text = os.environ.get(self.setting, "") if self.has_setting else self.setting
        if not text.startswith(("http://", "https://")):
            raise LookupError(
                f"{self.setting}={text!r}: give the http(s) address of the {self._name} service"
            )
        return text.rstrip("/")

    @overload
    async def post(self, call: Keyed, path: str, body: object = None) -> None: ...
    @overload
    async def post(self, call: Keyed, path: str, body: object, shape: type[R]) -> R: ...
    async def post(self, call: Keyed, path: str, body: object = None, shape: Any = None) -> Any:
        """Make one attempt at a POST; see ``request``."""
        return await self.request(call, "POST", path, body=body, shape=shape)

    @overload
    async def put(self, call: Keyed, path: str, body: object = None) -> None: ...
    @overload
    async def put(self, call: Keyed, path: str, body: object, shape: type[R]) -> R: ...
    async def put(self, call: Keyed, path: str, body: object = None, shape: Any = None) -> Any:
        """Make one attempt at a PUT; see ``request``."""
        return await self.request(call, "PUT", path, body=body, shape=shape)

    async def get(self, call: Keyed, path: str, shape: type[R]) -> R:
        """Make one attempt at a GET; see ``request``."""
        return await self.request(call, "GET", path, body=None, shape=shape)

    async def delete(self, call: Keyed, path: str) -> None:
        """Make one attempt at a DELETE, which undoes what has the key; see ``request``."""
        await self.request(call, "DELETE", path, body=None, shape=None)

    @overload
    async def request(
        self, call: Keyed, method: str, path: str, *, body: object, shape: None
    ) -> None: ...
    @overload
    async def request(
        self, call: Keyed, method: str, path: str, *, body: object, shape: type[R]
    ) -> R: ...
    async def request(
        self, call: Keyed, method: str, path: str, *, body: object, shape: Any
    ) -> Any:
        """Make one attempt, and return the answer's JSON as ``shape``.

        Args:
            call: the call of the step. Its key is the header ``Idempotency-Key``. A request of an
                undo that is no DELETE is an effect of its own, so it has a key of its own.
            method: the HTTP method.
            path: the path below the base address.
            body: the JSON body: a struct, a dataclass or plain data. None sends no body.
            shape: the type of the answer. With None the answer is not read.

        Raises:
            RefusedError: a definite refusal. Its code is the end of the problem's type (RFC 9457).
            TransientError: any failure that may pass, with the service's Retry-After.
            HeldError: the answer does not fit ``shape``. The step waits, and people are told why.
        """
        content = None if body is None else msgspec.to_builtins(body)
        answer = await self.call(method, path, key=call.key_for(method), body=content)
        if shape is None:
            return None
        try:
            return convert(msgspec.json.encode(answer), shape)
        except MalformedError as error:
            raise HeldError(
                f"the answer of {self._name} to {method} {path} does not fit "
                f"{getattr(shape, '__name__', shape)}: {error}"
            ) from None

    async def call(self, method: str, path: str, *, key: str, body: Any = None) -> Any:
        """Make one attempt with a key of your own, and return the answer's JSON as it is.

        A step with two effects at one service needs a second key. Make it from the call's, so that
        it stays the same in every attempt.

        Raises:
            RefusedError, TransientError: as ``request`` does.
        """
        import aiohttp  # noqa: PLC0415  # 0.1 s that a cold start need not wait for

        try:
            sign_in = await self.sign_in()
            async with self._session().request(
                method,
                self.address() + path,
                json=body,
                headers={"Idempotency-Key": key, **carried(), **sign_in},
                allow_redirects=False,
            ) as answer:
                return self._outcome(answer, await _read(answer))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:  # 3.
            reason = str(error) or type(error).__name__
            kind = "timeout" if isinstance(error, TimeoutError) else "unreachable"
            reason = whole_text(shortened(reason, REASON_LENGTH_MAX))
            text = f"{self._name} could not be reached: {reason}"
            raise TransientError(text, kind=kind) from None

    async def sign_in(self) -> Mapping[str, str]:
        """Return the headers that sign in.

        Raises:
            TransientError: they are not available now.
        """
        if self._headers is None:
            return {}
        try:
            return await self._headers()
        except Exception as error:  # noqa: BLE001  of the adopter's own code, or of its library
            text = f"the headers for {self._name} are not available: {type(error).__name__}"
            raise TransientError(text, kind="sign-in") from None

    async def close(self) -> None:
        """Close the session of the running event loop, if there is one."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def _session(self) -> aiohttp.ClientSession:
        import aiohttp  # noqa: PLC0415

        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            timeout = aiohttp.ClientTimeout(total=self._attempt_seconds)
            connector = aiohttp.TCPConnector(ssl=self._tls or True)
            session = aiohttp.ClientSession(
                timeout=timeout,
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),  # a cookie would tie one order to another
            )
            self._sessions[loop] = session
        return session

    def _outcome(self, answer: aiohttp.ClientResponse, data: bytes) -> Any:
        # 1. Done.
        if 200 <= answer.status < 300:
            try:
                return _json(data) if data else None
            except ValueError:
                text = f"{self._name} answered {answer.status} without JSON"
                raise TransientError(text, kind="no-json", error_answer=True) from None
        problem = _problem(data)
        text = problem.get("detail") or problem.get("title") or whole_text(answer.reason or "")
        text = shortened(text, REASON_LENGTH_MAX)
        # 3. It may pass, and may have had an effect.
        retry_after = _retry_after(answer.headers.get("Retry-After"))
        # A 401 is about the key that was given, not about this call.
        unsigned = answer.status == 401 and bool(self._headers or self._tls)
        unwell = answer.status in _UNWELL or unsigned
        is_definite = 300 <= answer.status < 500 and answer.status not in _TRANSIENT
        if not is_definite or unwell or retry_after is not None:
            text = f"{self._name} answered {answer.status}: {text}"
            raise TransientError(
                text,
                retry_after,
                f"http-{answer.status}",
                answered=answer.status < 500 and not unwell,
                error_answer=answer.status >= 500 and not unwell,
            )
        # 4. Nothing is left to undo.
        if answer.method == "DELETE" and answer.status in _NOTHING_THERE:
            return None
        # 2. Refused.
        code = problem.get("type", "").rpartition(":")[2]
        if code == "blank" or not _CODE.fullmatch(code):
            code = f"http-{answer.status}"
        raise RefusedError(code, f"{self._name} refused: {text}")


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """Return an answer's body. Reading stops once it is too large."""
    data = bytearray()
    async for piece in answer.content.iter_any():
        data += piece
        if len(data) > ANSWER_BYTES_MAX:
            break
    return bytes(data)


def _json(data: bytes) -> Any:
    """Return the value of a JSON text. Half a character is replaced.

    Raises:
        ValueError: it is no JSON (NaN is none), is too large or nests too deep, or has a number
            that Python cannot hold.
    """
    if len(data) > ANSWER_BYTES_MAX:
        raise ValueError(f"over {ANSWER_BYTES_MAX:,} bytes")
    text = data.decode(json.detect_encoding(data))
    check_depth(text, SALVAGE_DEPTH_MAX)
    value = json.loads(text, parse_constant=_finite, parse_float=_finite)
    if "\\ud" not in text.lower():
        return value
    return json.loads(whole_text(json.dumps(value, ensure_ascii=False)))


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no number")
    return number


def _problem(data: bytes) -> dict[str, str]:
    """Return the texts among the members of a problem (RFC 9457): its type, title and detail."""
    try:
        problem = _json(data)
    except ValueError:
        return {}
    members = problem.items() if isinstance(problem, dict) else ()
    return {name: value for name, value in members if isinstance(value, str)}


def _retry_after(text: str | None) -> timedelta | None:
    """Return the time that a Retry-After header asks for: seconds or a date (RFC 9110, 10.2.3)."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return timedelta(seconds=min(float(text), RETRY_AFTER_MAX.total_seconds()))
    until = http_date(text)
    if until is None:
        return None
    return min(max(until - datetime.now(UTC), timedelta(0)), RETRY_AFTER_MAX)
