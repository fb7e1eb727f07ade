"""Businesses whose agents do right and wrong, for ``sas sim --agents own``."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sas import Agent, AwaitCallback, Business, Call, HttpService, RefusedError, TransientError
from sas.domain.workflow import OnFailure, Step, Undo, Workflow, Workflows
from sas.ports import Blocking

TIME = timedelta(seconds=20)
UNDO = Undo(TIME)


class Careful:
    """Gives the key of its call."""

    def __init__(self) -> None:
        self.service = HttpService("bank", "https://bank.example", attempt_seconds=5)

    async def do(self, call: Call) -> Any:
        return await self.service.call("POST", "/charges", key=self.key(call), body=call.order)

    async def undo(self, call: Call) -> Any:
        return await self.service.call("DELETE", "/charges", key=call.key)

    async def close(self) -> None:
        await self.service.close()

    def key(self, call: Call) -> str:
        return call.key


class FreshKeys(Careful):
    """Makes a new key for each attempt."""

    def key(self, _call: Call) -> str:
        return str(uuid.uuid4())


class InMemory(Careful):
    """Remembers its keys, but only as long as its instance lives."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, str] = {}

    def key(self, call: Call) -> str:
        return self.keys.setdefault(call.key, str(uuid.uuid4()))


class OneKeyForTheOrder(Careful):
    """Gives the same key for two steps."""

    def key(self, call: Call) -> str:
        return call.order_id


class NoKeys(Careful):
    """Gives no key; it undoes by the id of what was done."""

    async def undo(self, call: Call) -> Any:
        number = (call.own_result or {}).get("id", "none")
        return await self.service.call("DELETE", f"/charges/{number}", key="")

    def key(self, _call: Call) -> str:
        return ""


class PutsByPath(Careful):
    """Needs no key: it PUTs to an address of its order."""

    async def do(self, call: Call) -> Any:
        path = f"/charges/{call.order_id}-{call.step}"
        return await self.service.call("PUT", path, key="", body=call.order)

    async def undo(self, call: Call) -> Any:
        path = f"/charges/{call.order_id}-{call.step}"
        return await self.service.call("DELETE", path, key="")


class UndoesNothing(Careful):
    """Has an undo that only returns."""

    async def undo(self, call: Call) -> Any:
        return None


class SwallowsErrors(Careful):
    """Reports that it is done whatever its service answers."""

    async def do(self, call: Call) -> Any:
        with suppress(RefusedError, TransientError):
            await super().do(call)
        return {"number": 1}


class CallsNothing(Careful):
    """Reports that it is done, and never calls its service."""

    async def do(self, _call: Call) -> Any:
        return {"number": 1}


class Sleepy(Careful):
    """Takes longer than its time limit, whatever its service does."""

    async def do(self, call: Call) -> Any:
        await asyncio.sleep(2 * TIME.total_seconds())
        return await super().do(call)


class TakesAMemberThatIsNotThere(Careful):
    """Has a bug."""

    async def do(self, call: Call) -> Any:
        return (await super().do(call))["price"]


class OpensASocket(Careful):
    """Connects past the event loop."""

    async def do(self, call: Call) -> Any:
        socket.create_connection(("127.0.0.1", 9), timeout=1).close()


class WaitsForACallback(Careful):
    """Is called back by somebody outside."""

    async def do(self, call: Call) -> Any:
        within = timedelta(minutes=5)
        callback = call.callback(within)
        assert callback.url is not None, "the simulation gives an address, as a deployment does"
        body = {"answer_to": callback.url}
        await self.service.call("POST", "/charges", key=call.key, body=body)
        return AwaitCallback(within)


class Waiting:
    """Blocks its thread."""

    def do(self, call: Call) -> Any:
        return None

    def undo(self, call: Call) -> Any:
        return None

    def close(self) -> None:
        return None


def business(pay: Agent, first: str = "stock") -> Business:
    """Return a business of two steps, whose second agent is given."""
    steps = (
        Step("reserve", agent=first, time_allowed=TIME, undo=UNDO),
        Step("pay", agent="bank", time_allowed=TIME, undo=UNDO),
    )
    workflows = Workflows([Workflow("order", version=1, steps=steps, on_failure=OnFailure.UNDO)])
    return Business(workflows=workflows, agents={"stock": Careful(), "bank": pay})


def careful() -> Business:
    return business(Careful())


def configured() -> Business:
    """Read a setting where the business is made, and where an agent works."""
    os.environ["BANK_URL"]

    class Configured(Careful):
        async def do(self, call: Call) -> Any:
            where = os.environ["BANK_URL"]
            return await self.service.call("POST", where, key=self.key(call), body=call.order)

    return business(Configured())


def sleepy() -> Business:
    return business(Sleepy())


def fresh_keys() -> Business:
    return business(FreshKeys())


def in_threads() -> Business:
    return business(Blocking(Waiting()))
