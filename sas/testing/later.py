"""What has to happen later: a callback ends its step, a deadline has its effect, an alert is sent.

Nothing here calls the code that it checks. It sees transitions, messages, calls and sweeps.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from sas.codec.outward import AlertMessage, RejectedMessage
from sas.domain.change import Change
from sas.domain.messages import Alert, AlertKind, JournalWord
from sas.domain.order import (
    CLOCK_SKEW,
    FINISHED,
    Direction,
    Order,
    Ready,
    StepRecord,
    StepState,
)
from sas.domain.workflow import OnFailure
from sas.ports import Call, Callback, Message
from sas.testing.platform import QUEUES
from sas.testing.system import System

Say = Callable[[int, str], None]
RESTS = timedelta(minutes=6)
"""After a sweep that failed for an order, the supervisor may leave that order alone for so long."""
SWEEP_TIME = timedelta(seconds=20)
"""A sweep that takes longer may have left rows to the next one."""
_ENDS = frozenset({StepState.PROCESSED, StepState.ERROR})


class Later:
    """Observes what a system has to do later, and reports what it does not do."""

    def __init__(self, system: System, say: Say) -> None:
        self._system, self._say = system, say
        self._ended: set[tuple[str, int, StepState]] = set()
        self._accepted: set[tuple[Any, ...]] = set()
        self._deadlines: dict[str, datetime] = {}
        self._swept_at = self._rests_until = system.world.clock.now()
        self._incidents: set[tuple[str, str]] = set()
        self._asides: dict[str, str] = {}
        agents = system.workflows.agents()
        self._requests = {
            QUEUES.agent(one, urgent=lane) for one in agents for lane in (False, True)
        }
        self._alerts: set[str] = set()
        self._alerted: set[tuple[str, str]] = set()
        self._arrives_until: dict[str, datetime] = {}
        system.on_answered = self._was_answered
        for host in system.hosts:
            self._hear(host)

    # --- callbacks ---

    def callback_completed(self, message: Message, *, kept: bool) -> None:
        """Check a callback that leaves its queue: it ended its step, or it is ``kept``."""
        said = msgspec.json.decode(message.body)
        ends = StepState.PROCESSED if said["outcome"] == "done" else StepState.ERROR
        if not kept and said["direction"] == Direction.DO.value and not self._is(said, ends):
            self._say(
                12,
                f"order {said['order_id']}: a callback is completed, and it neither ended step "
                f"{said['step']} nor is kept",
            )

    def is_awaited(self, body: bytes) -> bool:
        """Return whether the step of a callback can still take it: it has not ended so far."""
        said = msgspec.json.decode(body)
        stored = self._system.store.orders.get(said["order_id"])
        if stored is None or said["direction"] != Direction.DO.value:
            return False
        step = stored.order.steps[said["step"]]
        waits = step.process_state in {StepState.PROCESSING, StepState.PENDING}
        return waits and step.call.generation == said["generation"] and step.epoch > 0

    def _was_answered(self, callback: Callback, status: int) -> None:
        """Check the answer to a callback by HTTP."""
        claims = _claims(callback.token)
        where = f"order {claims['order_id']}: a callback for step {claims['step']}"
        if status == 202 and _key(claims) not in self._accepted and not self._holds(claims):
            self._say(2, f"{where} is answered 202, and is neither sent nor held")
        done = any(self._is(claims, end) for end in _ENDS)
        if status == 200 and claims["direction"] == Direction.DO.value and not done:
            self._say(12, f"{where} is answered 200, and its step has not ended")

    def _holds(self, claims: dict[str, Any]) -> bool:
        held = self._system.store._held.values()  # noqa: SLF001  the twin of a table
        callbacks = [one.body for one in held if one.queue.startswith(QUEUES.callbacks)]
        return any(_key(msgspec.json.decode(body)) == _key(claims) for body in callbacks)

    def _is(self, claims: dict[str, Any], ends: StepState) -> bool:
        """Return whether the step of a callback ever ended so."""
        return (claims["order_id"], claims["step"], ends) in self._ended

    # --- transitions ---

    def written(self, change: Change) -> None:
        """Check a transition that was just committed."""
        order, entry = change.after, change.entry
        if order.rejected:
            return
        where = f"order {order.order_id} seq {entry.seq} ({entry.what.value})"
        self._of_deadline(change, where)
        alerts = [one for one in entry.messages if isinstance(one, Alert)]
        olds = change.before.steps if change.before else ()
        for old, new in zip(olds, order.steps, strict=False):
            of_callback = (entry.cause or "").startswith(f"{QUEUES.callbacks}:")
            left = old.process_state is StepState.PROCESSING is not new.process_state
            ends = _ENDS if of_callback and left else _ENDS & {new.process_state}
            self._ended |= {(order.order_id, new.number, end) for end in ends}
            fails = new.process_state is StepState.ERROR is not old.process_state
            if fails and not any(alert.step == new.number for alert in alerts):
                self._say(12, f"{where}: {new.name} failed, and no alert is sent")
        if self._is_incident(change) and change.incident is None:
            self._say(12, f"{where}: no incident is reported")
        if change.incident is not None:
            self._incidents.add((change.incident.kind.value, change.incident.scope))

    def _is_incident(self, change: Change) -> bool:
        """Return whether operators must be told why an order waits."""
        if change.entry.what is JournalWord.WOKEN_AGAIN and change.before is not None:
            rules = self._system.rules_of(change.after)
            waited = _woken(change.before, change.after)
            return waited is not None and change.entry.at - waited.since >= rules.alert_after
        return change.entry.what is JournalWord.EXTENDED_WAIT

    # --- deadlines ---

    def _of_deadline(self, change: Change, where: str) -> None:
        order, entry = change.after, change.entry
        rules = self._system.rules_of(order)
        if entry.what is JournalWord.SUBMITTED and rules.deadline is not None:
            self._deadlines[order.order_id] = entry.at + rules.deadline
        ends_at = self._deadlines.get(order.order_id)
        overdue = entry.what in {JournalWord.OVERDUE, JournalWord.OVERDUE_UNDO}
        if overdue and (ends_at is None or entry.at < ends_at):
            self._say(12, f"{where}: it has no deadline, or it is not past it")
        if overdue:
            undoes = rules.on_failure is OnFailure.UNDO
            alerts = [one for one in entry.messages if isinstance(one, Alert)]
            told = any(alert.alert is AlertKind.OVERDUE for alert in alerts)
            if not (order.direction is Direction.UNDO if undoes else told):
                self._say(12, f"{where}: that is not what its workflow says")
        elif self._is_missed(order.order_id):
            self._say(12, f"{where}: it was past its deadline before, and nothing followed")
        elif order.direction is Direction.DO and order.process_state not in FINISHED:
            return
        self._deadlines.pop(order.order_id, None)

    def _is_missed(self, order_id: str) -> bool:
        """Return whether a whole sweep has begun since the deadline of an order."""
        ends_at = self._deadlines.get(order_id)
        return ends_at is not None and ends_at + 2 * CLOCK_SKEW < self._swept_at

    def _hear(self, host: Any) -> None:
        sweep, clock = host.sweep, self._system.world.clock

        async def swept() -> Any:
            begun = clock.now()
            found = await sweep()
            now, shards = clock.now(), len(self._system.store.shards)
            failed = found.failed or found.left or found.shards_failed
            if failed or found.shards_read < shards or now - begun > SWEEP_TIME:
                self._rests_until = now + RESTS if found.led else self._rests_until
            elif begun >= self._rests_until:
                self._swept_at = begun
            return found

        host.sweep = swept

    # --- messages and calls ---

    def was_sent(self, message: Message) -> None:
        """Remember an alert, a callback, or a message that is put aside."""
        if message.queue == QUEUES.alerts:
            alert = msgspec.json.decode(message.body, type=AlertMessage)
            self._alerts.add(alert.id)
            self._alerted.add((alert.kind, alert.scope or ""))
        elif message.queue == QUEUES.rejected:
            kept = msgspec.json.decode(message.body, type=RejectedMessage)
            # A request whose step no longer waits is not needed: after a crash nobody is told.
            if kept.source_queue not in {QUEUES.alerts, QUEUES.rejected, *self._requests}:
                self._asides[kept.id.rpartition("/")[0]] = kept.source_queue
        elif message.queue.startswith(QUEUES.callbacks):
            self._accepted.add(_key(msgspec.json.decode(message.body)))

    def called(self, call: Call) -> None:
        """Remember until when a call can have its effect at a service without tombstones."""
        drain_time = self._drain_time(call)
        if drain_time is not None:
            latest = self._arrives_until.get(call.key, call.complete_by)
            self._arrives_until[call.key] = max(latest, call.complete_by + drain_time)

    def called_to_undo(self, call: Call) -> None:
        """Check that no call can have its effect after this undo."""
        until, now = self._arrives_until.get(call.key), self._system.world.clock.now()
        if until is not None and now < until:
            early = (until - now).total_seconds()
            self._say(7, f"{call.key} is undone {early:.1f} s before its last call is cut off")

    def _drain_time(self, call: Call) -> timedelta | None:
        order = self._system.store.orders[call.order_id].order
        number = next(step.number for step in order.steps if step.name == call.step)
        return self._system.rules_of(order).steps[number].drain_time

    # --- the end ---

    def left_over(self) -> Iterator[str]:
        """Yield what should have happened until now."""
        for order_id in self._deadlines:
            if self._is_missed(order_id):
                yield f"order {order_id} is past its deadline, and nothing followed"
        for kind, scope in sorted(self._incidents - self._alerted):
            yield f"no alert of the incident {kind} ({scope}) was sent"
        for base, queue in self._asides.items():
            if f"{base}/alert" not in self._alerts:
                yield f"a message of {queue} is put aside as {base}, and no alert was sent"
        for shard, rows in self._system.store._due.items():  # noqa: SLF001  the twin of a table
            if rows:
                yield f"shard {shard} keeps {len(rows)} due rows for ever"


def _claims(token: str) -> dict[str, Any]:
    payload = base64.urlsafe_b64decode(token.partition(".")[0] + "==")
    return dict(msgspec.json.decode(payload))


def _key(claims: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a callback ends: a token and its message on the queue have the same."""
    names = ("order_id", "submission", "step", "direction", "generation")
    return tuple(claims.get(name) for name in names)


def _woken(before: Order, after: Order) -> StepRecord | None:
    """Return the step, as it was, whose ready turn was made longer."""
    for old, new in zip(before.steps, after.steps, strict=True):
        if isinstance(old.turn, Ready) and isinstance(new.turn, Ready) and old.turn != new.turn:
            return old
    return None
