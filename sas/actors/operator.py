"""Operator: carries out commands, once each, and answers those that cannot be.

A command carries a unique id and the journal seq that the operator saw. Twice at once does
it once (the cause is recorded); on a stale page it is refused, with what changed since.
"""

from __future__ import annotations

from datetime import datetime

from sas.actors.compose import alert
from sas.actors.context import Context
from sas.actors.shell import Acted, Cause, Shell
from sas.codec.outward import AlertMessage
from sas.domain import commands
from sas.domain.decisions import Decision
from sas.domain.ids import key_time
from sas.domain.messages import AlertKind, Command, Verb
from sas.domain.model import Order
from sas.ports import Business


class Operator:
    """Handles the commands on the ``scheduler`` queue."""

    def __init__(self, context: Context, business: Business, shell: Shell) -> None:
        self._context = context
        self._business = business
        self._shell = shell

    async def carry_out(self, command: Command, cause: str) -> Acted:
        """Put an order to a command; what cannot be done is answered on ``operator-alerts``.

        Raises as ``Shell.act`` does.
        """
        refusal = ""

        def decide(order: Order, now: datetime) -> Decision | None:
            nonlocal refusal
            refusal = _stale(order, command) or _unfit(order, command)
            if refusal:
                return None
            rules = self._business.workflow_of(order).rules
            decision = commands.decide(order, command, rules, now=now)
            if decision is None:
                refusal = f"{commands.WHEN[command.verb]}, and this is {order.process_state.value}"
            return decision

        by = Cause(cause, f"operator {command.by}")
        acted = await self._shell.act(command.order_id, by, decide)
        if acted is Acted.UNKNOWN_ORDER:
            refusal = "there is no such order"
        if acted in {Acted.NOTHING, Acted.UNKNOWN_ORDER}:
            await self._refuse(command, refusal)
        return acted

    async def _refuse(self, command: Command, why: str) -> None:
        """An operator whose command changed nothing is told so, in one sentence."""
        text = f"{command.verb.value} of order {command.order_id} was refused: {why}."
        told = AlertMessage(
            kind=AlertKind.COMMAND_REFUSED.value,
            at=key_time(self._context.clock.now()),
            text=text,
            id=f"refused/{command.command_id}"[:128],
            order_id=command.order_id,
        )
        await self._context.bus.send([alert(told, self._context.to)])


def _stale(order: Order, command: Command) -> str:
    if command.seq == order.seq or (command.seq is None and command.verb is Verb.CANCEL):
        return ""
    if command.seq is None:
        return f"it names no seq: look at the order (it is at {order.seq}) and say which you saw"
    return (
        f"it was meant for seq {command.seq}, and the order is at {order.seq} "
        f"({order.process_state.value}): look at it again"
    )


def _unfit(order: Order, command: Command) -> str:
    if order.rejected:
        return "it was rejected, and nothing of it was begun: submit it again"
    names = [step.name for step in order.steps]
    if command.step is not None and command.step not in names:
        return f"it has no step {command.step!r}, only {', '.join(names)}"
    return ""
