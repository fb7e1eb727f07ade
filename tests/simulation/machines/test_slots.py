"""Call slots: never more calls in flight than the limit, and every slot becomes free again.

Two instances admit calls over one store. A call ends, or its instance dies with it: then its slot
is free when the call must have ended. The store may be away when a slot is given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from sas.codec import internal
from sas.codec.internal import RequestMessage
from sas.engine.hooks import Admission, CallEnd
from sas.engine.in_flight import InFlightRequest
from sas.features.call_limit import CALL_MAX, WAIT_HERE, CallLimit
from sas.ports import Message
from sas.testing.clock import START
from sas.testing.store import StoreFault
from tests.simulation.machines.kit import AsyncMachine, sequences
from tests.unit.actors_kit import QUEUES, delivery, running

LIMIT = 2
SKEW_S = 5.0
HOSTS = st.sampled_from((0, 1))
AGES = st.integers(0, 2)


@dataclass(kw_only=True)
class Slot:
    """A slot that is taken. ``ends_at``: nobody has it then. ``in_flight``: its call still runs.

    ``lost``: its instance died. ``shared``: a later delivery of its request may have the same slot.
    """

    call: InFlightRequest
    host: int
    ends_at: float
    in_flight: bool = True
    lost: bool = False
    shared: bool = False


class Slots(AsyncMachine):
    """Two instances with one limit, and what is known of each slot that was taken."""

    @initialize()
    def start(self) -> None:
        self.system = self.run(running(alive=True))
        (message,) = self.system.bus.messages(QUEUES.agent("stock"))
        self.request = internal.decode(message.body, RequestMessage)
        self.message = message
        self.limits = [CallLimit(self.system.context, "stock", LIMIT) for _ in range(2)]
        self.slots: list[Slot] = []
        self.count = 0

    @property
    def now(self) -> float:
        return (self.system.clock.now() - START).total_seconds()

    def taken(self, at: float) -> list[Slot]:
        return [slot for slot in self.slots if slot.ends_at > at]

    def dead(self) -> list[Slot]:
        """Return the slots of dead instances whose request no other instance has."""
        alive = {slot.call.request.id for slot in self.slots if slot.in_flight and not slot.lost}
        return [s for s in self.taken(self.now) if s.lost and s.call.request.id not in alive]

    def request_of(self, own_id: str, seconds: int) -> InFlightRequest:
        until = self.system.clock.now() + timedelta(seconds=seconds)
        request = msgspec.structs.replace(self.request, id=own_id, complete_by=until)
        message = Message(self.message.queue, own_id, internal.encode(request))
        return InFlightRequest(request, delivery(message), self.system.clock)

    @rule(host=HOSTS, seconds=st.sampled_from((8, 30, 30, 3600)))
    def a_request_comes(self, host: int, seconds: int) -> None:
        self.count += 1
        self.admit(self.request_of(f"O-{self.count}/2/0", seconds), host, before=[])

    @rule(host=HOSTS, age=AGES)
    @precondition(lambda self: self.dead())
    def the_request_of_a_dead_instance_is_redelivered(self, host: int, age: int) -> None:
        """It finds its own slot, if there is no other one."""
        lost = self.dead()
        before = lost[age % len(lost)]
        own_id, until = before.call.request.id, before.call.request.complete_by
        seconds = max(int((until - self.system.clock.now()).total_seconds()), 8)
        same = [slot for slot in self.taken(self.now) if slot.call.request.id == own_id]
        self.admit(self.request_of(own_id, seconds), host, before=same)

    def admit(self, call: InFlightRequest, host: int, before: list[Slot]) -> None:
        """Its own slot is no other's: ``before`` has those that its earlier delivery took."""
        began, others = self.now, [slot for slot in self.taken(self.now) if slot not in before]
        answer = self.run(self.system.run(self.limits[host].admit(call)))
        waited = self.now - began
        if answer is Admission.CALL:
            assert len([s for s in others if s.ends_at > self.now and not s.shared]) < LIMIT
            for slot in before:
                slot.in_flight, slot.shared = False, True  # that process is dead
            until = (call.request.complete_by - START).total_seconds()
            ends_at = min(until, self.now + CALL_MAX.total_seconds()) + SKEW_S
            self.slots.append(Slot(call=call, host=host, ends_at=ends_at))
            assert self.run(self.limits[host].admit(call)) is Admission.CALL, "it has its slot"
        else:
            assert len(others) >= LIMIT, "a slot was free"
            assert waited <= WAIT_HERE.total_seconds()
            assert isinstance(answer, datetime)
            assert answer > self.system.clock.now()

    @rule(age=AGES, is_away=st.booleans())
    @precondition(lambda self: any(slot.in_flight and not slot.lost for slot in self.slots))
    def a_call_ends(self, age: int, is_away: bool) -> None:
        """Its slot is free at once, or after its lease if the store is away."""
        calls = [slot for slot in self.slots if slot.in_flight and not slot.lost]
        slot = calls[age % len(calls)]
        if is_away:
            self.system.store.fail_next("acquire_lease", StoreFault.UNAVAILABLE)
        self.run(self.limits[slot.host].ended(slot.call, CallEnd.ANSWERED, ""))
        self.run(self.limits[slot.host].ended(slot.call, CallEnd.ANSWERED, ""))
        slot.in_flight = False
        if not is_away:
            slot.ends_at = self.now

    @rule(host=HOSTS)
    def an_instance_dies(self, host: int) -> None:
        """Its calls may go on at the service until they must have ended."""
        self.limits[host] = CallLimit(self.system.context, "stock", LIMIT)
        for slot in self.slots:
            slot.lost = slot.lost or (slot.host == host and slot.in_flight)

    @rule(seconds=st.sampled_from((3, 10, 40, 620)))
    def time_passes(self, seconds: int) -> None:
        self.run(self.system.later(seconds))
        for slot in self.slots:
            slot.in_flight = slot.in_flight and slot.ends_at - SKEW_S > self.now

    @invariant()
    def no_more_calls_than_the_limit_are_in_flight(self) -> None:
        calls = [slot for slot in self.slots if slot.in_flight and slot.ends_at - SKEW_S > self.now]
        assert len(calls) <= LIMIT


TestSlots = sequences(Slots, examples=30, steps=30)
