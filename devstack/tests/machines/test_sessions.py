"""The sessions of a queue: who owns one, for how long, what comes to its owner, what is kept."""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from devstack.servicebus.amqp import decode
from devstack.servicebus.core import operations
from devstack.servicebus.core.dispatch import GRACE_S, SessionDispatch
from devstack.servicebus.core.errors import (
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from devstack.servicebus.core.message import MessageState, parse_message
from devstack.tests.machines.kit import PROFILE, REACHED, BrokerMachine
from devstack.tests.queue_kit import Receiver, raw

HOLDERS = st.sampled_from([None, None, None, "x", "y"])
LATE = st.sampled_from(["", "settle", "renew", "renew", "accept"])
LAST = st.sampled_from(["", "", "state", "all", "state and all"])
KINDS = st.sampled_from(["renew", "set", "get", "take", "take"])
LOCK_S, DELIVERIES_MAX = 3, 3
IDS = st.sampled_from("aab")
INDEX = st.integers(0, 5)
RARELY = st.sampled_from([False, False, False, True])
VERBS = st.sampled_from(["complete", "abandon", "abandon", "release", "defer", "defer"])


@dataclass(kw_only=True)
class Item:
    """A message in the model; ``holder`` is the receiver that has it locked."""

    number: int
    lane: str
    state: str = "ready"
    token: bytes | None = None
    count: int = 0


@dataclass
class Lane:
    """A session in the model. Receivers are known by their numbers."""

    owner: int | None = None
    until: float = 0.0
    state: bytes | None = None
    updated_at: float = 0.0


@dataclass
class SessionModel:
    """What must be in the sessions, in the words of dispatch.py."""

    last: int = 0
    items: list[Item] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    lanes: dict[str, Lane] = field(default_factory=lambda: {"a": Lane(), "b": Lane()})
    owned: list[str] = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    waiting: list[tuple[float, int]] = field(default_factory=list)
    events: dict[int, list[str]] = field(default_factory=dict)

    def ready(self, lane: str) -> list[Item]:
        items = [x for x in self.items if (x.lane, x.state, x.token) == (lane, "ready", None)]
        return sorted(items, key=lambda item: item.number)

    def grant(self, lane: str, receiver: int, now: float) -> None:
        self.lanes[lane].owner, self.lanes[lane].until = receiver, now + LOCK_S
        self.owned.append(lane)
        self.free = [other for other in self.free if other != lane]
        self.events.setdefault(receiver, []).append(f"granted {lane}")

    def look_for_free(self, now: float) -> None:
        """The session that has waited longest with messages goes to who has waited longest."""
        for lane, session in self.lanes.items():
            if session.owner is None and self.ready(lane) and lane not in self.free:
                self.free.append(lane)
        while self.free and self.waiting:
            self.grant(self.free[0], self.waiting.pop(0)[1], now)

    def put_back(self, item: Item, *, counts: bool) -> None:
        item.token = None
        item.count += counts
        if counts and item.count >= DELIVERIES_MAX:
            self.items.remove(item)
            self.dead.append(item.number)

    def let_go(self, lane: str, now: float, *, counts: bool) -> None:
        session = self.lanes[lane]
        if counts:
            self.events[session.owner or 0].append("lost")
        session.owner = None
        self.owned.remove(lane)
        for item in [x for x in self.items if x.lane == lane and x.token is not None]:
            self.put_back(item, counts=counts)
        self.look_for_free(now)

    def time_passes(self, now: float, presettled: set[int]) -> None:
        for lane in list(self.owned):
            session = self.lanes[lane]
            if session.until + (GRACE_S if session.owner in presettled else 0) <= now:
                self.let_go(lane, now, counts=True)
        for deadline, receiver in [entry for entry in self.waiting if entry[0] <= now]:
            self.waiting.remove((deadline, receiver))
            self.events.setdefault(receiver, []).append("refused")


class SessionMachine(BrokerMachine[SessionModel]):
    """One queue with two sessions; receivers of two connections come, wait, lose and come back."""

    def __init__(self) -> None:
        super().__init__(
            SessionModel(),
            requires_session=True,
            lock_duration_s=LOCK_S,
            max_delivery_count=DELIVERIES_MAX,
        )
        self.receivers: list[Receiver] = []
        self.tokens: list[bytes] = []

    @property
    def sessions(self) -> SessionDispatch:
        assert self.queue.sessions is not None
        return self.queue.sessions

    def new_receiver(self, holder: str, *, presettled: bool) -> int:
        self.receivers.append(Receiver(holder=holder, presettled=presettled))
        return len(self.receivers) - 1

    def owner_of(self, lane: str) -> Receiver | None:
        owner = self.model.lanes[lane].owner
        return None if owner is None else self.receivers[owner]

    # -- what may happen -----------------------------------------------------------------------

    @rule(lanes=st.lists(IDS, min_size=1, max_size=3))
    def send(self, lanes: list[str]) -> None:
        messages = [parse_message(raw(session_id=lane)) for lane in lanes]
        numbers = self.queue.enqueue(messages, self.now)
        for lane, number in zip(lanes, numbers, strict=True):
            self.model.last += 1
            assert number == self.model.last
            self.model.items.append(Item(number=number, lane=lane))
            self.model.look_for_free(self.now)
        self.note_deliveries()

    @rule(lane=IDS, holder=st.sampled_from("xy"), presettled=RARELY, patience=st.integers(-4, 4))
    def accept(self, lane: str, holder: str, presettled: bool, patience: int) -> None:
        """A receiver asks for a session by name, or waits for the next free one."""
        number, session = self.new_receiver(holder, presettled=presettled), self.model.lanes[lane]
        receiver = self.receivers[number]
        if patience > 0:
            self.model.waiting.append((self.now + patience, number))
            self.model.look_for_free(self.now)
            REACHED["waits"] += bool(self.model.waiting)
            self.sessions.accept_next(receiver, self.now, patience)
            return
        if session.owner is not None and session.until <= self.now:
            REACHED["taken away unswept"] += 1
            self.model.let_go(lane, self.now, counts=True)
        if session.owner is not None:
            with pytest.raises(SessionCannotBeLockedError):
                self.sessions.accept(receiver, lane, self.now)
        else:
            self.sessions.accept(receiver, lane, self.now)
            self.model.grant(lane, number, self.now)

    @rule(lane=IDS, credit=st.integers(0, 3), verb=VERBS, settles=st.booleans())
    def take(self, lane: str, credit: int, verb: str, settles: bool) -> None:
        """The owner of a session gets credit, and may settle one of its messages.

        Where there is no owner or no message, this makes them first: most lives do.
        """
        if not self.model.ready(lane):
            self.send([lane])
        if self.owner_of(lane) is None:
            self.accept(lane, "x", presettled=False, patience=0)
        receiver = self.owner_of(lane)
        assert receiver is not None
        receiver.credit += credit
        self.queue.dispatch.add_credit(receiver, self.now)
        self.note_deliveries()
        tokens = [x.token for x in self.model.items if x.lane == lane and x.token is not None]
        if tokens and settles:
            self.settle_with(verb, tokens[-1])

    @rule(lane=IDS, waits=RARELY, crowd=st.sampled_from([0, 0, 1, 2]), last=LAST)
    def leave(self, lane: str, waits: bool, crowd: int, last: str) -> None:
        """An owner closes its session, for which others wait; or one that waits gives up.

        Before it leaves, an owner may write the session's state, or complete all messages.
        """
        for _ in range(crowd):
            self.accept(lane, "y", presettled=False, patience=3)
        if waits and self.model.waiting:
            _, receiver = self.model.waiting.pop(0)
            self.queue.dispatch.detach(self.receivers[receiver], self.now)
            return
        owner = self.owner_of(lane)
        if owner is None:
            return
        if "state" in last:
            self.use(lane, holder=None, other_lane=lane, kind="set", index=0)
        if "all" in last:
            self.take(lane, credit=len(self.model.items), verb="complete", settles=False)
            for item in [x for x in self.model.items if x.lane == lane and x.token is not None]:
                self.settle_with("complete", item.token or b"")
        REACHED["left with locks"] += any(x.token for x in self.model.items if x.lane == lane)
        self.model.let_go(lane, self.now, counts=False)
        self.queue.dispatch.detach(owner, self.now)

    @rule(verb=VERBS, index=INDEX)
    def settle(self, verb: str, index: int) -> None:
        """Settle with a token of any age; it is valid while the session is held, swept or not."""
        if self.tokens:
            self.settle_with(verb, self.tokens[-1 - index % len(self.tokens)])

    def settle_with(self, verb: str, token: bytes) -> None:
        item = next((item for item in self.model.items if item.token == token), None)
        work = getattr(operations, verb)
        if item is None:
            REACHED["late settle"] += 1
            with pytest.raises(SessionLockLostError):
                work(self.queue, token, self.now)
            return
        work(self.queue, token, self.now)
        if verb == "complete":
            self.model.items.remove(item)
        else:
            item.state = "deferred" if verb == "defer" else item.state
            self.model.put_back(item, counts=verb == "abandon")
        self.note_deliveries()

    @rule(lane=IDS, holder=HOLDERS, other_lane=IDS, kind=KINDS, index=INDEX)
    def use(self, lane: str, holder: str | None, other_lane: str, kind: str, index: int) -> None:
        """Renew a session, or use its state or its deferred messages: only its holder may."""
        owner, session = self.owner_of(lane), self.model.lanes[lane]
        if holder is None:  # mostly that of the owner
            holder = str(owner.holder) if owner is not None else "x"
        if kind == "take":
            if index > 1 and not any(x.state == "deferred" for x in self.model.items):
                self.take(lane, credit=1, verb="defer", settles=True)
            self.take_deferred(other_lane if index == 0 else lane, lane, holder, index)
            return
        state = (b"", b"state")[index % 2] if session.state is None else None
        body = {"session_id": lane, "session_state": state}
        names = {"set": "set-session-state", "get": "get-session-state"}
        operation = names.get(kind, "renew-session-lock")
        reply = self.ask(self.queue, operation, holder=holder, **body)
        if owner is None or owner.holder != holder:
            assert (reply.status, reply.condition) == (410, SessionLockLostError.condition)
        elif kind == "renew":
            REACHED["renewed late"] += session.until <= self.now
            session.until = self.now + LOCK_S
            assert decode.decode(reply.body)[0]["expiration"] == int(session.until * 1000)
        elif kind == "set":
            session.state, session.updated_at = state, self.now
        else:
            assert decode.decode(reply.body)[0]["session-state"] == session.state

    def take_deferred(self, lane: str, other_lane: str, holder: str, index: int) -> None:
        """Ask a session for a message, which may be of another one or not deferred."""
        items = [x for x in self.model.items if x.lane == lane]
        items = [x for x in items if x.state == "deferred"] or items
        item = items[index % len(items)] if items else Item(number=777, lane=lane)
        reply = self.ask(
            self.queue,
            "receive-by-sequence-number",
            holder=holder,
            sequence_numbers=[item.number],
            session_id=other_lane,
            receiver_settle_mode=1,
        )
        owner = self.owner_of(other_lane)
        if owner is None or owner.holder != holder:
            assert reply.status == 410
        elif (item.lane, item.state, item.token) != (other_lane, "deferred", None):
            assert reply.status == 404
        else:
            REACHED["deferred"] += 1
            (entry,) = decode.decode(reply.body)[0]["messages"]
            item.token = entry["lock-token"].bytes_le
            self.tokens.append(entry["lock-token"].bytes_le)

    @rule(seconds=st.integers(0, 4), sweeps=st.sampled_from([True, True, False]), kind=LATE)
    def wait(self, seconds: int, sweeps: bool, kind: str) -> None:
        """Time passes, and the sweep comes or does not; or the fault `expire-locks` ends all locks.

        An owner may settle or renew after the time has passed and before the sweep. Or another
        receiver asks for its session.
        """
        if kind in {"renew", "accept"}:
            self.take("a", credit=1, verb="complete", settles=False)
        self.now += seconds
        tokens = [item.token for item in self.model.items if item.token is not None]
        if kind == "settle" and tokens:
            self.settle_with("complete", tokens[0])
        elif kind == "renew" and self.model.owned:
            self.use(self.model.owned[0], holder=None, other_lane="a", kind="renew", index=0)
        elif kind == "accept":
            self.accept("a", "y", presettled=False, patience=0)
        if seconds == 0:
            self.queue.expire_locks(self.now)
            for session in self.model.lanes.values():
                session.until = self.now
        if sweeps or seconds == 0:
            presettled = {n for n, receiver in enumerate(self.receivers) if receiver.presettled}
            self.model.time_passes(self.now, presettled)
            self.sweep()

    @rule(kind=st.sampled_from(["commit", "delete", "stop", "kill", "kill unwritten"]))
    def end(self, kind: str) -> None:
        """Make durable what has happened, or end the broker: each session ends with its owner.

        Or delete the queue and create it again: nothing of its sessions is left.
        """
        if kind == "commit":
            self.commit_all()
            return
        if kind == "delete":
            self.create_again()
            self.model, self.receivers = SessionModel(), []
            return
        self.end_life(commits=kind == "kill", cleanly=kind == "stop")
        self.model.last = self.queue.last_sequence
        self.receivers, self.model.events = [], {}
        self.model.owned, self.model.free, self.model.waiting = [], [], []
        for session in self.model.lanes.values():
            session.owner = None
        for item in sorted(self.model.items, key=lambda item: item.number):
            item.token = None
            if item.state == "ready" and item.lane not in self.model.free:
                self.model.free.append(item.lane)

    # -- what must be true -----------------------------------------------------------------------

    def note_deliveries(self) -> None:
        """The owner of a session has its messages in their order, as far as its credit goes."""
        for lane in self.model.owned:
            receiver = self.owner_of(lane)
            assert receiver is not None
            for message, token in receiver.deliveries:
                item = self.model.ready(lane)[0]
                assert message.sequence == item.number
                if receiver.presettled:
                    self.model.items.remove(item)
                else:
                    item.token = token
                self.tokens.append(token)
            receiver.deliveries.clear()
            assert not receiver.credit or not self.model.ready(lane)

    @invariant()
    def the_queue_has_what_the_model_has(self) -> None:
        ends = {lane: session.until for lane, session in self.model.lanes.items()}
        actual = [
            (m.sequence, m.session_id, m.state, m.delivery_count, m.token)
            for _, m in sorted(self.queue.messages.items())
        ]
        assert actual == [
            (x.number, x.lane, MessageState(x.state == "deferred"), x.count, x.token)
            for x in sorted(self.model.items, key=lambda item: item.number)
        ]
        for message in self.queue.locked.values():
            end = ends[str(message.session_id)]
            assert message.locked_until == end or end <= self.now
        assert sorted(self.dead.messages) == sorted(self.model.dead)

    @invariant()
    def each_session_is_held_by_its_owner_and_forgotten_without_a_reason(self) -> None:
        counts = {lane: sum(x.lane == lane for x in self.model.items) for lane in "ab"}
        expected = {
            lane: (self.owner_of(lane), session.state, counts[lane])
            for lane, session in self.model.lanes.items()
            if session.owner is not None or session.state is not None or counts[lane]
        }
        assert {s.id: (s.owner, s.state, s.count) for s in self.sessions} == expected
        for session in self.sessions:
            updated_at = self.model.lanes[session.id].updated_at
            assert session.state is None or session.updated_at == updated_at
        for number, receiver in enumerate(self.receivers):
            assert receiver.events == self.model.events.get(number, [])


TestSessions = SessionMachine.TestCase
TestSessions.settings = PROFILE
