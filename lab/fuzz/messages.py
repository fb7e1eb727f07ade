"""The entry points of messages: every queue, and the callback endpoint.

What holds after each input: there was no undocumented exception. A malformed message is kept
on the rejected queue, with an alert. No row changed of an order that the input does not name.
Another order completes.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from lab.fuzz.mutation import ODD, Raw, body_of, broken
from lab.fuzz.scene import AGENTS, BESIDE, ENDS, KEYS, Scene, World
from sas.codec import internal
from sas.codec.external import RejectedMessage, rejected_body
from sas.codec.internal import (
    CommandMessage,
    ReplyMessage,
    RequestMessage,
)
from sas.codec.orders import parse_order
from sas.codec.strict import MalformedError, convert
from sas.domain.queues import lane
from sas.engine import receiver
from sas.features.callbacks.codec import parse_body
from sas.ports import OtherVersionError
from sas.testing.platform import QUEUES, REPLIES_TO

Parts = dict[str, Any]
STATUS = frozenset({200, 202, 400, 401, 404, 409, 410, 429, 503})
"""Every status of the callback endpoint (``Callbacks.answer``)."""
PROPERTIES = (*receiver.PROPERTIES, "Diagnostic-Id", "x")
SOURCES = (
    *QUEUES.own(AGENTS),
    "",
    "unknown",
    REPLIES_TO,
    "ORDERS",
    "agent-",
    "agent-nobody",
)
FUZZED = "fuzzed-message"


def queue_parts(queue: str, scene: Scene, rng: random.Random) -> Parts:
    """Return a message for a queue: usually a valid message of this queue with some changes."""
    names = [name for name in scene.valid if name.removesuffix("-urgent") == queue]
    if rng.random() < 0.05 or not names:
        names = list(scene.valid)
    bodies = scene.valid[rng.choice(names)]
    body = body_of(json.loads(rng.choice(bodies)), rng)
    urgent = rng.random() < 0.2
    parts: Parts = {"queue": lane(queue, urgent=urgent), "body": body}
    if rng.random() < 0.2:
        properties = rng.sample(PROPERTIES, rng.choice([1, 1, 3]))
        parts["properties"] = {name: _property(rng) for name in properties}
    return parts


def letter_parts(scene: Scene, rng: random.Random) -> Parts:
    """Return a dead letter: any message, from its own queue or from another one."""
    queue = rng.choice(list(scene.valid))
    body = body_of(json.loads(rng.choice(scene.valid[queue])), rng)
    name = QUEUES.dead_letters + ("/$DeadLetterQueue" if rng.random() < 0.2 else "")
    source = queue if rng.random() < 0.7 else rng.choice(SOURCES)
    properties: Parts = {"sas_dead_letter_source": source}
    if rng.random() < 0.3:
        properties[rng.choice(PROPERTIES)] = _property(rng)
    return {"queue": name, "body": body, "properties": properties}


def _property(rng: random.Random) -> object:
    """Return the value of a property. The host hands over any JSON value."""
    value = rng.choice([value for value in ODD if not isinstance(value, Raw)])
    return rng.choice([value, str(value), "2026-01-01T00:00:00.000000Z", "7"])


def http_parts(scene: Scene, rng: random.Random) -> Parts:
    """Return a request to the callback endpoint."""
    token: str | None = rng.choice(scene.tokens)
    body = body_of(dict(rng.choice(ENDS)), rng)
    if rng.random() < 0.4:
        data = broken(str(token).encode(), rng).decode("utf-8", "replace")
        token = rng.choice([data, None, "", f"{token}".upper(), f"{token}.x", "." * 3000])
    parts: Parts = {"body": body, "token": token}
    if rng.random() < 0.3:
        parts["authorization"] = rng.choice(
            [f"Bearer {token}", f"bearer  {token} ", "Bearer", "Basic x", "", "\udcff", "Bearer é"]
        )
    return parts


async def check_http(parts: Parts, scene: Scene) -> str | None:
    """Send a request to the callback endpoint; return what is wrong with the answer."""
    world = scene.world()
    before = dict(world.table.entities)
    body = parts.get("body", b"")
    token, header = parts.get("token"), parts.get("authorization")
    answer = await world.guarded(world.app.callbacks.answer(token, header, body))
    if world.errors:
        return world.errors[0]
    if answer.status not in STATUS:
        return f"status {answer.status}"
    reply = json.loads(answer.body)
    if not (reply["code"] and reply["message"]):
        return f"an answer without a reason: {answer.body}"
    if answer.status >= 300 and world.table.entities != before:
        return f"status {answer.status}, and rows changed"
    try:
        parse_body(body)
    except MalformedError:
        if answer.status < 300:
            return f"a malformed body has status {answer.status}"
    return await _harm_to_others(world, before, parts)


async def check_message(parts: Parts, scene: Scene) -> str | None:
    """Deliver a message; return what went wrong."""
    world = scene.world()
    before = dict(world.table.entities)
    queue, body = parts.get("queue", QUEUES.orders), parts.get("body", b"")
    properties = parts.get("properties") or {}
    texts = {name: value for name, value in properties.items() if _is_plain(value)}
    world.odd[FUZZED] = properties
    world.send(queue, FUZZED, body, **texts)
    await world.pump()
    if world.errors:
        return world.errors[0]
    fate = _fate(world, before, queue, body)
    fates_allowed = _fates_allowed(queue, body, properties)
    if fates_allowed is not None and fate not in fates_allowed:
        return f"it must be {' or '.join(sorted(fates_allowed))}, and it is {fate}"
    return await _harm_to_others(world, before, parts)


def _is_plain(value: object) -> bool:
    """Return whether the bus in memory takes this value of a property."""
    return isinstance(value, str) and value.isprintable()


async def _harm_to_others(world: World, before: dict[Any, Any], parts: Parts) -> str | None:
    """Return how another order was harmed, or why a new order does not complete; else None."""
    changed = {
        key
        for key in before.keys() | world.table.entities.keys()
        if before.get(key) is not world.table.entities.get(key)
    }
    named = _named(parts)
    harmed = sorted({order_of(key) for partition, key in changed if partition != "meta"} - named)
    if harmed:
        return f"rows of {harmed[0]} changed, and the input does not name it"
    world.submit(BESIDE, "beside")
    world.bus.queues[QUEUES.scheduler].waiting.clear()
    await world.pump()
    state = world.state_of(BESIDE)
    if world.errors:
        return f"beside it: {world.errors[0]}"
    if state != "Processed" and BESIDE not in named:
        return f"the order beside it is {state}"
    report = await world.guarded(world.app.supervisor.sweep())
    return f"the sweep: {world.errors[0]}" if world.errors or report is None else None


def order_of(row_key: str) -> str:
    """Return the order of a row: its id is the second part, or the third behind a time."""
    kind, first, *rest = row_key.split("|")
    return first if kind == "order" or not rest else rest[0]


def _named(parts: Parts) -> set[str]:
    """Return the texts of an input that may be an order id, in the form that row keys have."""
    body = parts.get("body", b"").decode("utf-8", "replace")
    try:
        texts = set(_texts(json.loads(body)))
    except (ValueError, RecursionError):
        return set()
    tokens = {
        *texts,
        parts.get("token"),
        str(parts.get("authorization")).split()[-1:][0] if parts.get("authorization") else None,
    }
    for token in filter(None, tokens):
        try:
            texts.add(KEYS.read(str(token).strip()).order_id)
        except Exception:  # noqa: BLE001, S112  it is not a token
            continue
    return {
        text.replace("=", "=3d").replace("%", "=25").replace("+", "=2b").replace("'", "=27")
        for text in texts
    }


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from _texts(member)
    elif isinstance(value, list):
        for element in value:
            yield from _texts(element)


def _fate(world: World, before: dict[Any, Any], queue: str, body: bytes) -> str:
    """Return what became of a message."""
    if _hash(body) in _kept(world):
        return "kept"
    names = (queue, QUEUES.dead_letters)
    waiting = (queued.message.body for name in names for queued in world.bus.queues[name].waiting)
    if body in waiting:
        return "put back"
    if world.table.entities != before:
        return "accepted"
    is_sent = any(queued.message.message_id != FUZZED for queued in world.deliveries)
    is_told = any(world.bus.messages(name) for name in (QUEUES.alerts, REPLIES_TO))
    return "answered" if is_sent or is_told else "late"


def _kept(world: World) -> set[str]:
    """Return the hashes of the bodies on the rejected queue that have the alert that they need.

    A message from one of the operator's own queues needs no alert: see ``DeadLetters``. The
    incident of another one may have had its alert before.
    """
    messages = world.bus.messages(QUEUES.rejected)
    hashes = {_hash(message.body) for message in messages}
    alerts = b"".join(alert.body for alert in world.bus.messages(QUEUES.alerts))
    for message in messages:
        try:
            rejected = convert(message.body, RejectedMessage)
        except MalformedError:
            continue
        source = rejected.source_queue
        own_alert = rejected.id.removesuffix("1") + "alert"
        scope = json.dumps(f"queue {source}, reason {rejected.reason}", ensure_ascii=False)
        needs_no_alert = source in {QUEUES.alerts, QUEUES.rejected}
        rows = world.table.entities.values()
        is_incident = any(scope in str(value) for row in rows for value in row.values())
        if needs_no_alert or own_alert.encode() in alerts or is_incident:
            hashes.add(rejected.sha256 or _hash(rejected_body([rejected])))
    return hashes


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _for_scheduler(body: bytes) -> None:
    message = internal.decode_for_scheduler(body)
    if isinstance(message, CommandMessage):
        internal.to_command(message)
    if isinstance(message, ReplyMessage):
        internal.to_reply(message)


def _request(body: bytes) -> None:
    internal.decode(body, RequestMessage)


READERS: dict[str, Callable[[bytes], object]] = {
    QUEUES.orders: lambda body: parse_order(body, FUZZED),
    QUEUES.scheduler: _for_scheduler,
    **{QUEUES.agent(name): _request for name in AGENTS},
}
"""The reader of the messages of each queue. It raises MalformedError."""


def _fates_allowed(queue: str, body: bytes, properties: Parts) -> set[str] | None:
    """Return what may become of a message; None if anything may."""
    is_letter = queue.startswith(QUEUES.dead_letters)
    if is_letter:
        queue = str(properties.get("sas_dead_letter_source"))
        if QUEUES.is_response(queue):  # what an application did not read is counted, and not kept
            return None
    ordinary = queue.removesuffix("-urgent")
    reader = READERS.get(ordinary, _request)
    try:
        reader(body)
    except MalformedError:
        return {"kept"}
    except OtherVersionError:
        return {"kept", "put back"} if is_letter else {"put back"}
    if is_letter:  # if its cause is recorded without messages, the dead letter leaves nothing
        return None
    is_command = ordinary == QUEUES.scheduler and b'"command"' in body
    is_answered = "sas_external_sent" in properties
    if (is_command or ordinary == QUEUES.orders) and not is_answered:
        return {"kept", "accepted", "answered", "put back"}
    return None
