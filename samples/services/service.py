"""One service over HTTP: its collection, its faults, its ledger.

While a call with a key is in progress, a second call gets 409 ``in-progress`` with Retry-After at
once. It does not wait, because the first call may be slow and the client has a deadline. An undo
does not wait either. It takes the effect back, if there is one, and leaves a tombstone. So a do
that is still in progress has no effect.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from aiohttp import web

from samples.services.contract import (
    BODY_BYTES_MAX,
    REPLAYED_HEADER,
    Body,
    Contract,
    ProblemError,
    decode,
    fingerprint,
    key_of,
)
from samples.services.faults import FaultKind, Faults, FaultsError, Verb
from samples.services.ledger import Effect, KeyState, Ledger, LedgerFullError, LedgerView, Record

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# DNS rebinding can give our address to a name of any web page.
_HOSTS = frozenset({"127.0.0.1", "localhost"})
# Closing with this option sends RST: the client sees a connection reset.
_NO_LINGER = struct.pack("ii", 1, 0)


class Service:
    """One service. It is single-threaded, so code without await is atomic."""

    def __init__(
        self, contract: Contract, faults: Faults, ledger_max: int, file: Path | None = None
    ) -> None:
        self.contract = contract
        self.faults = faults
        self.calls = 0
        self._ledger = Ledger(contract.number_prefix, ledger_max, file)
        self._counts: Counter[FaultKind] = Counter()

    def app(self) -> web.Application:
        """Return the routes of this service."""
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_problems])
        collection = f"/{self.contract.collection}"
        app.add_routes(
            [
                web.post(collection, self._do),
                web.delete(collection, self._undo),
                web.get("/ledger", self._show_ledger),
                web.get("/faults", self._show_faults),
                web.put("/faults", self._change_faults),
                web.get("/health", self._show_health),
            ]
        )
        return app

    def close(self) -> None:
        """Close the file of the ledger."""
        self._ledger.close()

    def counts(self) -> tuple[int, int]:
        """Return the number of calls, and the number of injected faults."""
        return self.calls, self._counts.total()

    def ledger(self) -> LedgerView:
        """Return the answer of ``GET /ledger``: effects, doubled orders, calls and faults."""
        return {
            "service": self.contract.service,
            "effects": self._ledger.effects(),
            "doubled": self._ledger.doubled(),
            "calls": self.calls,
            "faults": {kind.value: self._counts[kind] for kind in FaultKind},
        }

    async def _do(self, request: web.Request) -> web.StreamResponse:
        self.calls += 1
        key = key_of(request)
        body = decode(await request.read(), self.contract)
        record = self._ledger.record_of(key)
        if record.in_progress:
            raise ProblemError(
                409,
                "in-progress",
                "a call with this key is in progress: try again later",
                {"Retry-After": str(self.faults.retry_after_seconds)},
            )
        record.in_progress = True
        try:
            return await self._with_faults(
                request, Verb.DO, key=key, record=record, act=lambda: self._execute(key, body)
            )
        finally:
            record.in_progress = False

    async def _undo(self, request: web.Request) -> web.StreamResponse:
        self.calls += 1
        key = key_of(request)
        record = self._ledger.record_of(key)
        return await self._with_faults(
            request, Verb.UNDO, key=key, record=record, act=lambda: self._take_back(key)
        )

    async def _with_faults(
        self,
        request: web.Request,
        verb: Verb,
        *,
        key: str,
        record: Record,
        act: Callable[[], web.Response],
    ) -> web.StreamResponse:
        """Act, unless a fault comes before the effect. A fault after it loses the answer."""
        record.attempts[verb] += 1
        if self.faults.latency:
            await asyncio.sleep(self.faults.latency)
        kind = self.faults.of_attempt(self.contract.service, verb, key, record.attempts[verb])
        if kind is None:
            return act()
        self._counts[kind] += 1
        match kind:
            case FaultKind.RESET_AFTER_EFFECT | FaultKind.ERROR_AFTER_EFFECT:
                act()
            case FaultKind.SLOW_BEFORE_EFFECT:
                await asyncio.sleep(self.faults.slow_seconds)
                return act()
            case FaultKind.SLOW_AFTER_EFFECT:
                answer = act()
                await asyncio.sleep(self.faults.slow_seconds)
                return answer
        if kind in (FaultKind.RESET, FaultKind.RESET_AFTER_EFFECT):
            return _reset(request)
        return self._transient_problem(kind).response()

    def _transient_problem(self, kind: FaultKind) -> ProblemError:
        if kind is FaultKind.UNAVAILABLE:
            return ProblemError(503, "unavailable", "the service is unavailable: try again")
        if kind is FaultKind.TOO_MANY:
            after = str(self.faults.retry_after_seconds)
            return ProblemError(
                429, "too-many-requests", "slow down: see Retry-After", {"Retry-After": after}
            )
        # Before and after the effect the answer is the same, so the client cannot know the effect.
        return ProblemError(500, "internal-error", "the effect is unknown: try again")

    def _execute(self, key: str, body: Body) -> web.Response:
        """Execute the call, or answer why not. It is atomic, so it must not await."""
        content = fingerprint(body)
        match self._ledger.state_of(key, content):
            case KeyState.UNDONE:
                return ProblemError(409, "undone", "this key was undone: use a new key").response()
            case KeyState.REUSED:
                return ProblemError(
                    422,
                    "idempotency-key-reused",
                    "this key had an effect with other content: use a new key",
                ).response()
            case KeyState.REPLAY:
                return self._answer(self._ledger.replay(key), replayed=True)
        if self.faults.refuses(self.contract.service, Verb.DO, key):
            self._counts[FaultKind.REFUSED] += 1
            return ProblemError(422, self.contract.refusal, self.contract.refusal_detail).response()
        effect = self._ledger.execute(key, body.order_id, content, datetime.now(UTC))
        return self._answer(effect, replayed=False)

    def _answer(self, effect: Effect, *, replayed: bool) -> web.Response:
        return web.json_response(
            self.contract.answer(effect.number),
            status=201,
            headers={REPLAYED_HEADER: "true"} if replayed else {},
        )

    def _take_back(self, key: str) -> web.Response:
        """Undo and leave a tombstone; a refused undo changes nothing."""
        if self.faults.refuses(self.contract.service, Verb.UNDO, key):
            self._counts[FaultKind.UNDO_REFUSED] += 1
            return ProblemError(
                422, "undo-refused", "this cannot be undone: an operator must decide"
            ).response()
        undone, repeated = self._ledger.undo(key, datetime.now(UTC))
        return web.json_response(
            {"undone": undone}, headers={REPLAYED_HEADER: "true"} if repeated else {}
        )

    async def _show_ledger(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self.ledger())

    async def _show_faults(self, _: web.Request) -> web.StreamResponse:
        return _json(self.faults)

    async def _change_faults(self, request: web.Request) -> web.StreamResponse:
        """Change the named faults from the next call on. All others stay."""
        try:
            changes = msgspec.json.decode(await request.read(), type=dict[str, object])
            self.faults = self.faults.changed(changes)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, FaultsError) as error:
            raise ProblemError(400, "malformed", f"nothing changed: {error}") from error
        return _json(self.faults)

    async def _show_health(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"service": self.contract.service, "healthy": True})


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _reset(request: web.Request) -> web.Response:
    """Reset the TCP connection. The returned response is not sent."""
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        request.transport.abort()
    return web.Response()


@web.middleware
async def _problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every refusal, including those of aiohttp, into problem+json."""
    if request.host.partition(":")[0] not in _HOSTS:
        text = "this service answers as 127.0.0.1 only"
        return ProblemError(421, "misdirected-request", text).response()
    try:
        return await handler(request)
    except ProblemError as problem:
        return problem.response()
    except LedgerFullError as error:
        return ProblemError(507, "ledger-full", str(error)).response()
    except web.HTTPException as error:
        # Python 3.13 renamed the reason of 413; the problem type must stay the same.
        too_large = isinstance(error, web.HTTPRequestEntityTooLarge)
        name = "content-too-large" if too_large else error.reason.lower().replace(" ", "-")
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return ProblemError(error.status, name, error.text or error.reason, headers).response()
