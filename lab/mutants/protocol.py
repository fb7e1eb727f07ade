"""Mutants of the protocol and of the edge of the platform. Seeds of the simulation find them."""

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
        "no ETag",
        _STORE,
        "if token != (change.before.token if change.before else None):",
        "if bool(token) != bool(change.before):",
    ),
    Mutant(
        "a cause is not checked",
        _STORE,
        "if stored and entry.cause and digest_id(entry.cause) in stored.causes:",
        "if False:",
    ),
    Mutant(
        "no epoch check",
        _CLAIM,
        "and step.dispatched and step.epoch == epoch",
        "and step.dispatched",
    ),
    Mutant(
        "a reply counts in any state",
        _CLAIM,
        "return step.process_state is expected and step.dispatched and step.epoch == epoch",
        "return step.epoch == epoch",
    ),
    Mutant(
        "send before commit",
        _RUNNER,
        "            order = await self._context.commit(await self._offloaded(change))\n",
        "            known = self._workflow_of\n"
        "            workflow = None if known is None else known(change.after)\n"
        "            await self._context.outbox.send(change.after, entry, workflow)\n"
        "            order = await self._context.commit(await self._offloaded(change))\n",
    ),
    Mutant(
        "a timer leaves no out row",
        _RUNNER,
        "out_at = at + OUT_AGAIN_AFTER if self.cause is None else None",
        "out_at = None",
    ),
    Mutant(
        "a repeated message is not sent again",
        _RUNNER,
        "        if entry.messages:\n            fresh",
        "        if False:\n            fresh",
    ),
    Mutant(
        "a refused commit counts as done",
        _RUNNER,
        'log.info("order %s: another instance won seq %s", change.after.order_id, entry.seq)\n'
        "            return False",
        "return True",
    ),
    Mutant(
        "trust a stale kept order",
        _RUNNER,
        "        if change is None or change.incident is not None:  # an old order must report "
        "nothing\n            return False",
        "        if change is None:\n            return True",
    ),
    Mutant(
        "an out row is deleted before its messages are sent",
        _OUTBOX,
        "        fetched = await self._fetched(order, entry)\n",
        "        if out is not None:\n            await self._store.remove_due(out)\n"
        "        fetched = await self._fetched(order, entry)\n",
    ),
    Mutant(
        "alerts and notifications are not sent",
        _OUTBOX,
        "        if outside:\n",
        "        if False:\n",
    ),
    Mutant(
        "a held message is dropped",
        _OUTBOX,
        "                await self._send_held(message, due)",
        "                pass",
    ),
    Mutant(
        "what a queue does not take is not held",
        "sas/engine/outward.py",
        "            await self._store.hold(_key(order_id), traced, at)",
        "            _ = traced, at",
    ),
    Mutant(
        "a MessageId is used again",
        "sas/domain/ids.py",
        'return f"{order_id}/{seq}/{index}"',
        'return f"{order_id}/{index}"',
    ),
    Mutant(
        "a reply has the same MessageId in every epoch",
        "sas/domain/ids.py",
        'return f"{order_id}/{step:02d}/{direction}/{epoch}"',
        'return f"{order_id}/{step:02d}/{direction}"',
    ),
    Mutant(
        "forget the due row of a change",
        _STORE,
        "rows.update((_due_key(added), added) for added in change.due_added())",
        "_ = change.due_added()",
    ),
    Mutant(
        "delete due rows early",
        _STORE,
        "for gone in change.due_removed():",
        "for gone in [row for row in rows.values() if row.order_id == change.after.order_id]:",
    ),
    Mutant(
        "undo only what is Processed",
        _UNDO,
        "if step.epoch == 0 or rules",
        "if step.process_state is not StepState.PROCESSED or rules",
    ),
    Mutant(
        "undo without waiting for late calls",
        _UNDO,
        "    until = step.call.called_until + CLOCK_SKEW + drain_time",
        "    until = now",
    ),
    Mutant(
        "a step that is tried again may go to another agent",
        _CLAIM,
        "    if step.epoch:\n        return step.call.route\n",
        "",
    ),
    Mutant(
        "each request of a step goes to the next of its agents",
        "sas/engine/messages.py",
        "step.agents[record.call.route], urgent",
        "step.agents[item.epoch % len(step.agents)], urgent",
    ),
    Mutant(
        "undo in any order",
        _CLAIM,
        "return all(states[n] is StepState.COMPENSATED for n in later)",
        "return bool(later) or True",
    ),
    Mutant(
        "steps do not wait for earlier ones",
        _CLAIM,
        "return done and StepState.ERROR not in states",
        "return True",
    ),
    Mutant(
        "the epoch is not raised",
        _CLAIM,
        "epoch=step.epoch + 1,",
        "epoch=max(step.epoch, 1),",
    ),
    Mutant(
        "a reset wakes nobody and leaves no due row",
        _EXPIRE,
        "        after = settle(order, reset, rules, now)\n",
        "        after = with_step(order.steps, reset)\n        rest = rest or NO_TIME.max\n",
    ),
    Mutant(
        "a reset does not count",
        _EXPIRE,
        "times = step.failure_count + 1",
        "times = step.failure_count",
    ),
    Mutant(
        "every timeout is excused",
        _EXPIRE,
        "if excuse is None or (excuse is Excuse.STUCK and turn.excused >= EXCUSES_MAX):",
        "if False:",
    ),
    Mutant(
        "an extended wait never ends",
        _EXPIRE,
        "if wait is None or waits >= wait.times:",
        "if wait is None:",
    ),
    Mutant(
        "keep the key on an edit",
        _COMMAND,
        "generation=step.call.generation + 1",
        "generation=step.call.generation",
    ),
    Mutant(
        "older generations are not undone",
        _AGENT,
        "for generation in range(request.generation):",
        "for generation in range(0):",
    ),
    Mutant(
        "a stale command is carried out",
        "sas/actors/operator.py",
        "refusal = _stale(order, command) or _unfit(order, command)",
        "refusal = _unfit(order, command)",
    ),
    Mutant(
        "a refused command is not reported",
        "sas/actors/operator.py",
        "            await self._refuse(command, refusal)",
        "            _ = refusal",
    ),
    Mutant(
        "an undo can be taken back",
        _COMMAND,
        "    if step.undo_failed:\n",
        "    if False:\n",
    ),
    Mutant(
        "a cancelled order undoes steps that are out at once, as if never begun",
        _COMMAND,
        "return replace(step, undo=UndoStatus.TO_BE_UNDONE)",
        "return turn_to_undo(replace(step, epoch=0), rules, now)",
    ),
    Mutant(
        "dead letters skip the fence",
        _DEAD,
        "result = await self._runner.run(order_id, source, _fence_or_reject(source, None))",
        "result = ApplyResult.COMMITTED",
    ),
    Mutant(
        "dead letters are dropped",
        _DEAD,
        "        if await self._finished(order_id, cause):\n            return\n"
        "        source = self._source(cause)\n",
        "        return\n        source = self._source(cause)\n",
    ),
    Mutant(
        "a message that is put back keeps its id",
        _RECEIVER,
        'f"again/{digest_id(delivery.queue, delivery.message_id, str(times))}"',
        "delivery.message_id",
    ),
    Mutant(
        "a message that waits is completed",
        _RECEIVER,
        "            await self.bus.send([copy])",
        "            _ = copy",
    ),
    Mutant(
        "the key has the epoch in it",
        "sas/engine/messages.py",
        "idempotency_key=idempotency_key(order.order_id, step.name, item.generation),",
        "idempotency_key=idempotency_key(order.order_id, step.name, item.epoch),",
    ),
    Mutant(
        "an agent answers after CompleteBy",
        _AGENT,
        "if answer is None or deadline.left() <= 0:",
        "if answer is None:",
    ),
    Mutant(
        "a submission wakes nobody",
        "sas/domain/submit.py",
        "(Wake(), Notify(Notice.RECEIVED))",
        "(Notify(Notice.RECEIVED),)",
    ),
    Mutant(
        "a rejected order gets no notification",
        "sas/engine/rejections.py",
        "            await self._outward.send([notice], sender.order_id or _base_id(rejection))",
        "            _ = notice",
    ),
    Mutant(
        "decide in the dead-letter function",
        _DEAD,
        "result = await self._runner.run(order_id, source, _fence_or_reject(source, None))\n",
        "from sas.domain.claim import claim\n"
        "        known = self._runner._workflow_of\n"
        "        result = await self._runner.apply(\n"
        "            order_id, source,\n"
        "            lambda order, now:\n"
        "            claim(order, known(order).rules, now=now, instance='dead'),\n"
        "        )\n"
        "        if result is ApplyResult.NOTHING:\n"
        "            propose = _fence_or_reject(source, None)\n"
        "            result = await self._runner.run(order_id, source, propose)\n",
    ),
    Mutant(
        "believe a dead letter of unknown source",
        _DEAD,
        "        else:\n            await self._put_aside(delivery, None)\n\n"
        "    async def _internal",
        "        else:\n"
        "            await self._internal(delivery, queues.replies)\n\n"
        "    async def _internal",
    ),
    Mutant(
        "count what was not tried",
        _EXPIRE,
        "    if excuse is None or (excuse is Excuse.STUCK and turn.excused >= EXCUSES_MAX):",
        "    if True:",
    ),
    Mutant(
        "a reply that a rival overtook is dropped",
        _RUNNER,
        "            if order is not None and await self._repeated(order, source):\n"
        "                return ApplyResult.REPEATED\n",
        "            if order is not None:\n                return ApplyResult.REPEATED\n",
    ),
    Mutant(
        "an order that was given up cannot be sent again",
        "sas/actors/submission.py",
        "if order is None or order.rejected:",
        "if order is None:",
    ),
    Mutant(
        "a dead letter with unsent messages is done",
        "sas/operate/letters.py",
        "if not entry.messages:",
        "if entry.messages is not None:",
    ),
    Mutant(
        "a redriven message keeps its MessageId",
        "sas/operate/redriving.py",
        'new_id = f"redrive/{digest_id(path, str(first.sequence), key_time(first.enqueued_at))}"',
        "new_id = first.message_id",
    ),
    Mutant(
        "a redriven message is put back under ids that it had before",
        "sas/operate/redriving.py",
        "dropped, source = {FIRST_AT, SOURCE, WHY, WHY_TEXT}, one.source",
        'dropped, source = {"sas_put_back", FIRST_AT, SOURCE, WHY, WHY_TEXT}, one.source',
    ),
    Mutant(
        "a callback that is answered 202 is not sent",
        _CALLBACKS,
        "        await self._context.outward.send([sent], order.order_id)",
        "        _ = sent",
    ),
    Mutant(
        "a callback is answered 200 while its step waits",
        _CALLBACKS,
        "    StepStatus.WAITS: (202, ",
        "    StepStatus.WAITS: (200, ",
    ),
    Mutant(
        "a callback of a step that waits is dropped",
        _CALLBACKS,
        "            if status is StepStatus.WAITS:",
        "            if False:",
    ),
    Mutant(
        "a callback of a step that is out is dropped",
        _CALLBACKS,
        "            return decisions.decide(order, said, rules, now=now, "
        "instance=self._context.instance)",
        "            return None",
    ),
    Mutant(
        "a callback that is too late is dropped",
        _CALLBACKS,
        "            if status is StepStatus.CLOSED:\n                raise",
        "            if False:\n                raise",
    ),
    Mutant(
        "a passed deadline does nothing",
        _EXPIRE,
        "order.deadline is None or order.deadline > now:\n        return None\n"
        "    if order.direction",
        "True:\n        return None\n    if order.direction",
    ),
    Mutant(
        "a passed deadline undoes no order",
        _EXPIRE,
        "    if rules.on_failure is OnFailure.HOLD:\n",
        "    if True:\n",
    ),
    Mutant(
        "a deadline has no due row",
        "sas/domain/change.py",
        "    if order.deadline is None:\n        return frozenset(steps)",
        "    if True:\n        return frozenset(steps)",
    ),
    Mutant(
        "an undo allows for no difference of clocks",
        _UNDO,
        "    until = step.call.called_until + CLOCK_SKEW + drain_time",
        "    until = step.call.called_until + drain_time",
    ),
    Mutant(
        "ready steps that no scheduler claims are no incident",
        _EXPIRE,
        "    if age >= rules.alert_after:",
        "    if False:",
    ),
    Mutant(
        "a step that rests is no incident",
        _EXPIRE,
        "    return Decision(JournalWord.EXTENDED_WAIT, after, (), incident=incident)",
        "    return Decision(JournalWord.EXTENDED_WAIT, after, ())",
    ),
    Mutant(
        "an incident sends no alert",
        "sas/features/incidents/board.py",
        "                await self._send(_alert(active, now))",
        "                _ = _alert(active, now)",
    ),
    Mutant(
        "a step that failed sends no alert",
        _EXPIRE,
        "return Decision(JournalWord.STEP_FAILED, after, (notice, alert))",
        "return Decision(JournalWord.STEP_FAILED, after, (notice, *(alert,)[1:]))",
    ),
    Mutant(
        "a message is put aside without an alert",
        "sas/engine/rejections.py",
        "            await self._outward.send([alert(body, self._to)], rejection.order_id or base)",
        "            _ = body",
    ),
)
