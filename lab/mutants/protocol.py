"""Mutants of the protocol. Seeds of the simulation find them."""

from __future__ import annotations

from lab.mutants.mutant import Mutant

_RUNNER = "sas/engine/transition.py"
_OUTBOX = "sas/engine/outbox.py"
_CLAIM = "sas/domain/claim.py"
_UNDO = "sas/domain/undo.py"
_EXPIRE = "sas/domain/expire.py"
_COMMAND = "sas/domain/command.py"
_STORE = "sas/testing/store.py"
_AGENT = "sas/actors/agent.py"
_DEAD = "sas/actors/dead_letters.py"
_RECEIVER = "sas/engine/receiver.py"
_CALLBACKS = "sas/features/callbacks/endpoint.py"
MUTANTS = (
    Mutant(
        name="no ETag",
        path=_STORE,
        old="if token != (change.before.token if change.before else None):",
        new="if bool(token) != bool(change.before):",
    ),
    Mutant(
        name="a cause is not checked",
        path=_STORE,
        old="if stored and entry.cause and digest_id(entry.cause) in stored.causes:",
        new="if False:",
    ),
    Mutant(
        name="send before commit",
        path=_RUNNER,
        old="            order = await self._context.commit(await self._offloaded(change))\n",
        new="            known = self._workflow_of\n"
        "            workflow = None if known is None else known(change.after)\n"
        "            await self._context.outbox.send(change.after, entry, workflow)\n"
        "            order = await self._context.commit(await self._offloaded(change))\n",
    ),
    Mutant(
        name="trust a stale kept order",
        path=_RUNNER,
        old="        if change is None or change.incident is not None:  # an old order must report "
        "nothing\n            return False",
        new="        if change is None:\n            return True",
    ),
    Mutant(
        name="an out row is deleted before its messages are sent",
        path=_OUTBOX,
        old="        fetched = await self._fetched(order, entry)\n",
        new="        if out is not None:\n            await self._store.remove_due(out)\n"
        "        fetched = await self._fetched(order, entry)\n",
    ),
    Mutant(
        name="a MessageId is used again",
        path="sas/domain/ids.py",
        old='return f"{order_id}/{seq}/{index}"',
        new='return f"{order_id}/{index}"',
    ),
    Mutant(
        name="a reply has the same MessageId in every epoch",
        path="sas/domain/ids.py",
        old='return f"{order_id}/{step:02d}/{direction}/{epoch}"',
        new='return f"{order_id}/{step:02d}/{direction}"',
    ),
    Mutant(
        name="forget the due row of a change",
        path=_STORE,
        old="rows.update((_due_key(due), due) for due in change.due_added())",
        new="_ = change.due_added()",
    ),
    Mutant(
        name="delete due rows early",
        path=_STORE,
        old="for due in change.due_removed():",
        new="for due in [row for row in rows.values() if row.order_id == change.after.order_id]:",
    ),
    Mutant(
        name="undo only what is Processed",
        path=_UNDO,
        old="if step.epoch == 0 or rules",
        new="if step.process_state is not StepState.PROCESSED or rules",
    ),
    Mutant(
        name="undo without waiting for late calls",
        path=_UNDO,
        old="    until = step.call.called_until + CLOCK_SKEW + drain_time",
        new="    until = now",
    ),
    Mutant(
        name="each request of a step goes to the next of its agents",
        path="sas/engine/messages.py",
        old="step.agents[record.call.route], urgent",
        new="step.agents[item.epoch % len(step.agents)], urgent",
    ),
    Mutant(
        name="undo in any order",
        path=_CLAIM,
        old="return all(states[number] is StepState.COMPENSATED for number in later)",
        new="return bool(later) or True",
    ),
    Mutant(
        name="steps do not wait for earlier ones",
        path=_CLAIM,
        old="return all_done and StepState.ERROR not in states",
        new="return True",
    ),
    Mutant(
        name="the epoch is not raised",
        path=_CLAIM,
        old="epoch=step.epoch + 1,",
        new="epoch=max(step.epoch, 1),",
    ),
    Mutant(
        name="a reset wakes nobody and leaves no due row",
        path=_EXPIRE,
        old="        after = replace_step(order, reset, rules, now)\n",
        new="        after = with_step(order.steps, reset)\n        rest = rest or NO_TIME.max\n",
    ),
    Mutant(
        name="a reset does not count",
        path=_EXPIRE,
        old="times = step.failure_count + 1",
        new="times = step.failure_count",
    ),
    Mutant(
        name="older generations are not undone",
        path=_AGENT,
        old="for generation in range(request.generation):",
        new="for generation in range(0):",
    ),
    Mutant(
        name="a cancelled order undoes steps that are out at once, as if never begun",
        path=_COMMAND,
        old="return replace(step, undo=UndoStatus.TO_BE_UNDONE)",
        new="return begin_step_undo(replace(step, epoch=0), rules, now)",
    ),
    Mutant(
        name="dead letters skip the fence",
        path=_DEAD,
        old="await self._runner.run(order_id, self._trigger(cause), _fence_or_reject(None))",
        new="ApplyResult.COMMITTED",
    ),
    Mutant(
        name="a message that is put back keeps its id",
        path=_RECEIVER,
        old='f"again/{digest_id(delivery.queue, delivery.message_id, str(times))}"',
        new="delivery.message_id",
    ),
    Mutant(
        name="the key has the epoch in it",
        path="sas/engine/messages.py",
        old="idempotency_key=idempotency_key(order.order_id, step.name, item.generation),",
        new="idempotency_key=idempotency_key(order.order_id, step.name, item.epoch),",
    ),
    Mutant(
        name="decide in the dead-letter function",
        path=_DEAD,
        old="result = await self._runner.run(order_id, self._trigger(cause), "
        "_fence_or_reject(None))\n",
        new="from sas.domain.claim import claim\n"
        "        workflow_of, trigger = self._runner._workflow_of, self._trigger(cause)\n"
        "        result = await self._runner.run(\n"
        "            order_id, trigger,\n"
        "            lambda order, now: order and\n"
        "            claim(order, workflow_of(order).rules, now=now, instance='dead'),\n"
        "        )\n"
        "        if result is ApplyResult.NOTHING:\n"
        "            result = await self._runner.run(order_id, trigger, _fence_or_reject(None))\n",
    ),
    Mutant(
        name="believe a dead letter of unknown source",
        path=_DEAD,
        old="        else:\n"
        "            await self._put_aside(delivery, None, is_expendable=is_forged)\n\n"
        "    async def _internal",
        new="        else:\n            await self._internal(delivery)\n\n    async def _internal",
    ),
    Mutant(
        name="a dead letter with unsent messages is done",
        path="sas/operate/letters.py",
        old="if not entry.messages:",
        new="if entry.messages is not None:",
    ),
    Mutant(
        name="a redriven message keeps its MessageId",
        path="sas/operate/redriving.py",
        old='f"redrive/{digest_id(path, str(message.sequence), key_time(message.enqueued_at))}"',
        new="message.message_id",
    ),
    Mutant(
        name="a redriven message is put back under ids that it had before",
        path="sas/operate/redriving.py",
        old="{FIRST_AT, FAILURES, BUG, SOURCE, DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION}",
        new='{"sas_put_back", FIRST_AT, SOURCE, DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION}',
    ),
    Mutant(
        name="a callback is answered 200 while its step waits",
        path=_CALLBACKS,
        old="    StepStatus.WAITS: (202, ",
        new="    StepStatus.WAITS: (200, ",
    ),
    Mutant(
        name="a callback of a step that is out is dropped",
        path=_CALLBACKS,
        old="            return decisions.decide(\n",
        new="            return None and decisions.decide(\n",
    ),
    Mutant(
        name="an undo allows for no difference of clocks",
        path=_UNDO,
        old="    until = step.call.called_until + CLOCK_SKEW + drain_time",
        new="    until = step.call.called_until + drain_time",
    ),
)
