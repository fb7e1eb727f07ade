"""Operator: carries out each command once, and says why it refuses one.

A command carries a unique id and the journal seq that the operator saw. A repeated command is
carried out once, because its cause is recorded. The order may have moved since the operator looked:
a command for an older seq is refused, and the refusal says where the order is now. Only a cancel
may leave the seq out.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from sas.bounds import EDITED_UNITS_MAX, check_units
from sas.codec.external import AlertMessage
from sas.codec.payloads import decode_content, encode_content
from sas.codec.strict import CONTENT_DEPTH_MAX, check_depth, parse
from sas.domain.change import Decision, Trigger
from sas.domain.command import decide as decide_command
from sas.domain.command import takes_input, why_not
from sas.domain.ids import digest_id, key_time
from sas.domain.messages import AlertKind, Command, Verb
from sas.domain.order import Direction, Order, StepState
from sas.domain.texts import quoted
from sas.domain.workflow import Rules, UnknownWorkflowError
from sas.engine.command_answers import CommandAnswers
from sas.engine.context import Context
from sas.engine.delivery import Delivery
from sas.engine.failing_check import FailingCheckError, check_order
from sas.engine.messages import alert
from sas.engine.transition import ApplyResult, TransitionRunner
from sas.ports import Business, DecodingError


class Operator:
    """Handles the commands on the ``scheduler`` queue."""

    def __init__(
        self,
        context: Context,
        business: Business,
        runner: TransitionRunner,
        deploy_wait: timedelta,
    ) -> None:
        self._context = context
        self._deploy_wait = deploy_wait
        self._business = business
        self._runner = runner
        self._answers = CommandAnswers(context.store)

    async def carry_out(self, command: Command, cause: str, delivery: Delivery) -> ApplyResult:
        """Carry out a command, or refuse it with an alert; raises as ``TransitionRunner.run``."""
        refusal = ""

        def decide(order: Order | None, now: datetime) -> Decision | None:
            nonlocal refusal
            if order is None:
                refusal = "there is no such order: check its id"
                return None
            refusal = _stale(order, command) or _unfit(order, command)
            if refusal:
                return None
            try:
                rules = self._context.rules.of(self._business.workflow_of(order), now)
            except UnknownWorkflowError as error:
                delivery.leave_to_others(error, now, self._deploy_wait)
                refusal = f"{error}; deploy it again as it was, beside the newer versions"
                return None
            refusal = _unfit_step(order, command, rules)
            if refusal:
                return None
            try:
                self._check_result(order, command, rules)
                accepted = self._encoded(order, command)
            except ValueError as error:
                refusal = f"its input is not accepted: {error}"
                return None
            decision = decide_command(
                order, accepted, rules, now=now, instance=self._context.instance
            )
            if decision is None:
                refusal = why_not(order, command.verb)
            return decision

        trigger = Trigger(
            by=f"operator {command.by}",
            cause=cause,
            reason=command.reason,
            external_sent=delivery.external_sent,
        )
        if command.verb is Verb.CALLBACK:  # it may ask agents for the next steps
            await self._context.rules.refresh()
        result = await self._runner.run(command.order_id, trigger, decide)
        if result in {ApplyResult.NOTHING, ApplyResult.UNKNOWN_ORDER}:
            await self._refuse(command, refusal)
        return result

    def _encoded(self, order: Order, command: Command) -> Command:
        """Return a command whose input is encoded like the payload of the order.

        The input of a resubmission replaces the payload, so it must pass the same check.

        Raises:
            ValueError: it does not pass, cannot be decoded, or is too large; or the check has a
                bug.
        """
        if command.input is None:
            return command
        codec = self._context.codec
        try:
            text = decode_content(command.input, codec)
        except DecodingError as error:
            raise ValueError(str(error)) from None
        parse(text.encode())
        check_depth(text, CONTENT_DEPTH_MAX)
        if command.verb is Verb.RESUBMIT:
            saga = order.details.workflow, order.details.version
            try:
                check_order(self._business, saga, text.encode())
            except FailingCheckError as bug:
                raise ValueError(f"{bug.explanation}. Deploy a mended version") from None
        encoded = encode_content(text, codec)
        check_units("input, as it is stored,", encoded, EDITED_UNITS_MAX)
        return replace(command, input=encoded)

    def _check_result(self, order: Order, command: Command, rules: Rules) -> None:
        """Check the result of a step that is skipped, or whose callback is given by hand.

        Raises:
            ValueError: it does not fit.
        """
        if order.direction is Direction.UNDO or command.fault is not None:
            return
        if command.verb not in {Verb.SKIP, Verb.CALLBACK}:
            return
        text = command.input and decode_content(command.input, self._context.codec)
        for step in order.steps:
            is_meant = step.process_state is StepState.ERROR
            if command.verb is Verb.CALLBACK:
                is_meant = step.awaits_callback
            if not is_meant or command.step not in {None, step.name}:
                continue
            if text is None and command.verb is Verb.SKIP and not rules.dependents(step.number):
                continue
            try:
                self._business.check_result(order, step.name, text)
            except ValueError as error:
                if text is not None or command.verb is Verb.CALLBACK:
                    raise
                needs_it = order.steps[rules.dependents(step.number)[0]].name
                raise ValueError(
                    f"step {needs_it} needs the result of {step.name}: give it with --input "
                    f"({error})"
                ) from None

    async def _refuse(self, command: Command, why: str) -> None:
        """Report a refusal: to the CLI that waits, and by an alert to the operators."""
        message_id = command.command_id
        await self._answers.record(message_id, why)
        if len(message_id) > 100:  # a MessageId has 128 characters at most
            message_id = digest_id(message_id)
        text = f"{command.verb.value} of order {quoted(command.order_id)} was refused: {why}."
        body = AlertMessage(
            kind=AlertKind.COMMAND_REFUSED.value,
            at=key_time(self._context.clock.now()),
            text=text,
            id=f"refused/{message_id}",
            order_id=command.order_id,
        )
        await self._context.external.send([alert(body, self._context.to)], command.order_id)


def _stale(order: Order, command: Command) -> str:
    if command.seq == order.seq or (command.seq is None and command.verb is Verb.CANCEL):
        return ""
    if command.seq is None:
        return f"it names no seq: look at the order, which is at seq {order.seq}, and give that seq"
    return (
        f"it was meant for seq {command.seq}, and the order is at {order.seq} "
        f"({order.process_state.value}): look at it again"
    )


def _unfit(order: Order, command: Command) -> str:
    if order.rejected:
        return "it was rejected before it began: submit it again"
    by_name = {step.name: step for step in order.steps}
    if command.step is not None and command.step not in by_name:
        return f"it has no step {command.step!r}, only {', '.join(by_name)}"
    if command.verb is Verb.CALLBACK:
        return ""
    if command.verb not in {Verb.RESUBMIT, Verb.SKIP}:
        names_part = command.step is not None or command.input is not None
        return "it is for the whole order: name no step, and give no input" if names_part else ""
    if command.step is not None and by_name[command.step].process_state is not StepState.ERROR:
        state = by_name[command.step].process_state.value
        allowed = "only a step in Error can be resubmitted or skipped"
        return f"its step {command.step} is {state}, and {allowed}"
    return _unfit_input(order, command) if command.input is not None else ""


def _unfit_input(order: Order, command: Command) -> str:
    """Refuse an input unless it is for the do of one failed step: nothing else would read it."""
    failed = [step for step in order.steps if step.process_state is StepState.ERROR]
    if command.step is None and len(failed) > 1:
        names = ", ".join(step.name for step in failed)
        return f"its steps {names} are in Error: name the one that the input is for"
    if order.direction is Direction.UNDO:
        return "it is being undone, and an undo takes no input"
    return ""


def _unfit_step(order: Order, command: Command, rules: Rules) -> str:
    """Refuse an input if the calls with older keys could not be undone first."""
    if command.input is None or command.verb is not Verb.RESUBMIT:
        return ""
    failed = [
        step
        for step in order.steps
        if step.process_state is StepState.ERROR and command.step in {None, step.name}
    ]
    bare = [step.name for step in failed if not takes_input(step, rules)]
    if bare:
        return (
            f"its step {bare[0]} accepts no input: its earlier calls cannot be undone at once "
            "(no undo, a drain_time, or an undo that failed)"
        )
    return ""
