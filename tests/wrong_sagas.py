"""Sagas of two steps whose second function does something wrong, each in its own way."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from sas import Call, RefusedError, Saga, TransientError

TIME = timedelta(seconds=20)


class Ticket(msgspec.Struct, frozen=True):
    """What is ordered."""

    amount: int


class Charge(msgspec.Struct, frozen=True):
    """What the bank has charged."""

    number: str


@dataclass(frozen=True)
class Key:
    """A key of the adopter's own, in place of the call's."""

    key: str

    def key_for(self, _method: str) -> str:
        """Return it."""
        return self.key


Do = Callable[[Any, Call[Ticket]], Any]
"""What the second step does: it gets the bank, and the call."""
_numbers = itertools.count()


async def careful(bank: Any, call: Call[Ticket]) -> Charge:
    charge: Charge = await bank.post(call, "/charges", call.order, Charge)
    return charge


async def without_key(bank: Any, call: Call[Ticket]) -> Any:
    return await bank.post(Key(""), "/charges", call.order, Charge)


async def with_fresh_keys(bank: Any, call: Call[Ticket]) -> Any:
    return await bank.post(Key(f"key-{next(_numbers)}"), "/charges", call.order, Charge)


async def with_one_key(bank: Any, call: Call[Ticket]) -> Any:
    return await bank.post(Key("the-key"), "/charges", call.order, Charge)


async def swallows(bank: Any, call: Call[Ticket]) -> Any:
    with suppress(RefusedError, TransientError):
        await bank.post(call, "/charges", call.order, Charge)
    return Charge("none")


async def raises(bank: Any, call: Call[Ticket]) -> Any:
    charge = await careful(bank, call)
    return {"number": {"a": charge}["b"]}


async def returns_another_type(bank: Any, call: Call[Ticket]) -> Any:
    await careful(bank, call)
    return {"number": 3}


async def returns_too_much(bank: Any, call: Call[Ticket]) -> Any:
    await careful(bank, call)
    return Charge("x" * 1024 * 1024)


async def opens_a_socket(_bank: Any, _call: Call[Ticket]) -> Any:
    socket.create_connection(("127.0.0.1", 9), timeout=1).close()


async def never_ends(bank: Any, call: Call[Ticket]) -> Any:
    await careful(bank, call)
    call.later(timedelta(minutes=1), "on its way")


def saga_of(do: Do, *, undoes: bool = True, name: str = "ticket") -> Saga[Ticket]:
    """Return a saga whose second step does this."""
    saga = Saga(name, Ticket)
    stock, bank = saga.service("STOCK_URL"), saga.service("BANK_URL", attempt_seconds=5)

    @saga.step(time_allowed=TIME)
    async def reserve(call: Call[Ticket]) -> Charge:
        return await stock.post(call, "/seats", None, Charge)

    @reserve.undo
    async def free(call: Call[Ticket]) -> None:
        await stock.delete(call, "/seats")

    @saga.step(after=reserve, time_allowed=TIME)
    async def pay(call: Call[Ticket], _reserved: Charge) -> Charge:
        charge: Charge = await do(bank, call)
        return charge

    @pay.undo
    async def refund(call: Call[Ticket]) -> None:
        if undoes:
            await bank.delete(call, "/charges")

    @saga.step(after=pay, time_allowed=TIME)
    async def confirm(call: Call[Ticket], _charge: Charge) -> Charge:
        return await stock.post(call, "/confirmations", None, Charge)

    @confirm.undo
    async def revoke(call: Call[Ticket]) -> None:
        await stock.delete(call, "/confirmations")

    return saga


tickets = saga_of(raises)
"""For ``sas sim --app tests.wrong_sagas``: the first story fails."""
