"""Steps that await a callback, and the callbacks that come for them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from sas.domain.workflow import Workflow
from sas.features.callbacks.endpoint import Answer
from sas.ports import AgentCall, AwaitCallback, Callback, Message
from tests.unit.actors_kit import QUEUES, Kit, called_back, kit

HOUR = timedelta(hours=1)


class IssuedCallbacks(list[Callback]):
    """The callbacks that an agent asked for."""

    def awaits(self, within: timedelta = HOUR) -> Callable[[AgentCall], Awaitable[Any]]:
        async def ask(call: AgentCall) -> Any:
            self.append(call.callback(within))
            return AwaitCallback(within)

        return ask


async def awaiting(
    *workflows: Workflow, within: timedelta = HOUR, **policy: Any
) -> tuple[Kit, Callback]:
    """Return a kit whose first step awaits a callback, and that callback."""
    system = kit(*workflows, **policy)
    callbacks = IssuedCallbacks()
    await system.submit()
    system.agents["stock"].then(callbacks.awaits(within))
    await system.drain()
    return system, callbacks[0]


def callback_message(callback: Callback, message_id: str = "c-1", **members: Any) -> Message:
    return called_back(callback.token, message_id, **members)


async def post(
    system: Kit, token: str | None, body: Any = None, header: str | None = None
) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body or {"outcome": "done"}).encode()
    return await system.run(system.callbacks.answer(token, header, raw))


def waiting(system: Kit) -> list[Message]:
    return [queued.message for queued in system.bus.queues[QUEUES.scheduler].waiting]
