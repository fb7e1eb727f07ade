"""The life of messages on a queue: locks, settlements, dead letters, time, duplicates, restarts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from devstack.servicebus.amqp import decode, encode
from devstack.servicebus.core import operations
from devstack.servicebus.core.errors import BrokerError, MessageLockLostError, QuotaExceededError
from devstack.servicebus.core.message import MessageState, parse_message
from devstack.servicebus.core.queue import Queue
from devstack.tests.machines.kit import PROFILE, REACHED, BrokerMachine, lock_token
from devstack.tests.queue_kit import Receiver, application_properties, raw

WINDOW_S, MEGABYTE, BIG = 4, 1 << 20, 300_000
QUEUE, DEAD = "q", "dead"
PLACES = st.sampled_from([QUEUE, QUEUE, QUEUE, DEAD])
SPANS = st.sampled_from([None, None, None, 1, 2, 4])
INDEX = st.integers(0, 5)
MOSTLY = st.sampled_from([True, True, True, False])
LOCKS = st.sampled_from([1, 3, 3, 5])
RARELY = st.sampled_from([False, False, False, True])
VERBS = ("complete", "abandon", "release", "defer", "bury")
ENDS = (None, None, None, "abandon", "defer", "defer", "bury", "renew")
STATES = {"deferred": MessageState.DEFERRED, "scheduled": MessageState.SCHEDULED}


@dataclass(kw_only=True)
class Letter:
    """A message in the model. ``until`` is the end of its lock."""

    number: int
    size: int
    ttl: int | None
    at: float | None
    place: str = QUEUE
    state: str = "ready"
    token: bytes | None = None
    until: float = 0.0
    expires: float | None = None
    count: int = 0
    words: dict[str, Any] = field(default_factory=dict)


@dataclass
class QueueModel:
    """What must be in the queue and in its dead letters, in the words of queue.py."""

    lock_s: int = 3
    deliveries_max: int = 2
    buries: bool = True
    last: int = 0
    letters: list[Letter] = field(default_factory=list)
    ids: dict[str, tuple[float, int]] = field(default_factory=dict)

    def arrives(self, letter: Letter, message_id: str | None, now: float) -> int:
        first = self.ids.get(message_id or "")
        if first is not None and now < first[0] + WINDOW_S:
            return first[1]
        self.last += 1
        letter.number = self.last
        if message_id:
            self.ids[message_id] = (now, letter.number)
        self.letters.append(letter)
        if letter.at is not None and letter.at > now:
            letter.state = "scheduled"
        else:
            self.becomes_ready(letter, now)
        return letter.number

    def becomes_ready(self, letter: Letter, now: float) -> None:
        letter.state = "ready"
        letter.expires = None if letter.ttl is None else now + letter.ttl

    def locked(self, token: bytes, place: str, now: float) -> Letter | None:
        for letter in self.letters:
            if (letter.token, letter.place) == (token, place) and letter.until > now:
                return letter
        return None

    def ready(self, place: str, now: float) -> list[Letter]:
        return sorted(
            (
                letter
                for letter in self.letters
                if (letter.place, letter.state, letter.token) == (place, "ready", None)
                and not is_over(letter.expires, now)
            ),
            key=lambda letter: letter.number,
        )

    def put_back(self, letter: Letter, now: float, *, counts: bool) -> None:
        letter.token = None
        letter.count += counts
        if counts and letter.place == QUEUE and letter.count >= self.deliveries_max:
            self.bury(letter, "MaxDeliveryCountExceeded")
        elif letter.state == "ready" and is_over(letter.expires, now):
            self.expire(letter)

    def bury(self, letter: Letter, reason: str) -> None:
        letter.place, letter.state, letter.token = DEAD, "ready", None
        letter.expires = letter.at = letter.ttl = None
        letter.words["DeadLetterReason"] = reason

    def expire(self, letter: Letter) -> None:
        if self.buries:
            self.bury(letter, "TTLExpiredException")
        else:
            self.letters.remove(letter)

    def time_passes(self, now: float) -> None:
        """Do what the sweep does: scheduled messages get their numbers in the order of time."""
        for letter in sorted(self.letters, key=lambda letter: (letter.at or 0, letter.number)):
            if letter.token is not None and letter.until <= now:
                self.put_back(letter, now, counts=True)
            elif letter.state == "scheduled" and is_over(letter.at, now):
                self.last += 1
                letter.number = self.last
                self.becomes_ready(letter, now)
            elif (letter.state, letter.token) == ("ready", None) and is_over(letter.expires, now):
                self.expire(letter)


def is_over(moment: float | None, now: float) -> bool:
    return moment is not None and moment <= now


class QueueMachine(BrokerMachine[QueueModel]):
    """One queue with duplicate detection, a receiver that may stay, and tokens of any age."""

    def __init__(self) -> None:
        super().__init__(
            QueueModel(),
            lock_duration_s=3,
            max_delivery_count=2,
            dead_letter_on_expiration=True,
            requires_duplicate_detection=True,
            duplicate_window_s=WINDOW_S,
            max_size_megabytes=1,
            max_message_kilobytes=1024,
        )
        self.tokens: list[tuple[str, bytes]] = []
        self.listener: tuple[str, Receiver] | None = None

    def place_of(self, place: str) -> Queue:
        return self.queue if place == QUEUE else self.dead

    def letter_of(self, index: int, place: str, state: str) -> int:
        """Return the number of a message, of one in this state if there is any."""
        letters = [letter for letter in self.model.letters if letter.place == place]
        letters = [letter for letter in letters if letter.state == state] or letters
        return letters[index % len(letters)].number if letters else 7777

    def token_of(self, index: int, *, live: bool) -> tuple[str, bytes] | None:
        """Return a token with its place: of a lock that lasts, or the newest of any age."""
        tokens = self.tokens[-6:]
        if live:
            tokens = [pair for pair in tokens if self.model.locked(pair[1], pair[0], self.now)]
        return tokens[index % len(tokens)] if tokens else None

    # -- what may happen -----------------------------------------------------------------------

    @rule(
        sends=st.lists(
            st.tuples(st.sampled_from([None, None, "a", "b"]), SPANS, SPANS, RARELY),
            min_size=1,
            max_size=3,
        )
    )
    def send(self, sends: list[tuple[str | None, int | None, int | None, bool]]) -> None:
        messages, letters = [], []
        for message_id, ttl, delay, is_big in sends:
            at = None if delay is None else self.now + delay
            ttl_ms = None if ttl is None else ttl * 1000
            message = parse_message(raw(message_id=message_id, ttl_ms=ttl_ms, scheduled_at=at))
            message.size = BIG if is_big else 1
            messages.append(message)
            letters.append(Letter(number=0, size=message.size, ttl=ttl, at=at))
        size = sum(letter.size for letter in [*self.model.letters, *letters])
        if size > MEGABYTE:
            REACHED["full"] += 1
            with pytest.raises(QuotaExceededError):
                self.queue.enqueue(messages, self.now)
            return
        numbers = self.queue.enqueue(messages, self.now)
        pairs = zip(letters, sends, strict=True)
        assert numbers == [self.model.arrives(letter, send[0], self.now) for letter, send in pairs]

    @rule(
        place=PLACES,
        count=st.integers(1, 3),
        presettled=RARELY,
        then=st.sampled_from(ENDS),
        ttl=SPANS,
        holds_s=st.sampled_from([0, 2]),
    )
    def take(
        self,
        place: str,
        count: int,
        *,
        presettled: bool,
        then: str | None,
        ttl: int | None = None,
        holds_s: int = 0,
    ) -> None:
        """A receiver comes, takes what its credit allows, settles one, and leaves with locks.

        Or it renews all of them, and the broker is killed. A message whose time to live ends while
        it is held expires when its lock ends.
        """
        if not self.model.ready(QUEUE, self.now):
            self.send([(None, ttl, None, False)])
            self.a_listener_has_what_it_can_take()
        expected = [letter.number for letter in self.model.ready(place, self.now)][:count]
        receiver = Receiver(presettled=presettled)
        receiver.credit = count
        self.place_of(place).dispatch.add_credit(receiver, self.now)
        self.place_of(place).dispatch.detach(receiver, self.now)
        assert [message.sequence for message, _ in receiver.deliveries] == expected
        self.note_deliveries(place, receiver)
        if holds_s:
            self.wait(holds_s, sweeps=True, renews=[], late=None)
        if expected and then == "renew":
            self.a_listener_has_what_it_can_take()
            self.renew(self.tokens[-len(expected) :])
            self.end("kill")
        elif expected and then is not None:
            self.settle_with(then, *self.tokens[-1], properties=count)

    @rule(place=PLACES, credit=st.integers(1, 3), presettled=RARELY)
    def listen(self, place: str, credit: int, presettled: bool) -> None:
        """A receiver comes and stays: what becomes ready later goes to it at once. Or it leaves."""
        if self.listener is not None:
            place, receiver = self.listener
            self.place_of(place).dispatch.detach(receiver, self.now)
            self.listener = None
            return
        receiver = Receiver(presettled=presettled)
        receiver.credit = credit
        self.listener = (place, receiver)
        self.place_of(place).dispatch.add_credit(receiver, self.now)

    @rule(verb=st.sampled_from(VERBS), index=INDEX, live=MOSTLY)
    def settle(self, verb: str, index: int, live: bool) -> None:
        """Settle with a token of any age. The tokens of ended locks change nothing."""
        choice = self.token_of(index, live=live)
        if choice is not None:
            self.settle_with(verb, *choice, properties=index)

    def settle_with(self, verb: str, place: str, token: bytes, *, properties: int) -> None:
        letter = self.model.locked(token, place, self.now)
        changes = {"n": encode.int32(properties)}
        work: dict[str, Callable[[], None]] = {
            "complete": lambda: operations.complete(self.place_of(place), token, self.now),
            "abandon": lambda: operations.abandon(self.place_of(place), token, self.now, changes),
            "release": lambda: operations.release(self.place_of(place), token, self.now),
            "defer": lambda: operations.defer(self.place_of(place), token, self.now, changes),
            "bury": lambda: operations.dead_letter(self.place_of(place), token, self.now, "Bad"),
        }
        if letter is None or (verb, place) == ("bury", DEAD):
            condition = self._refusal_of(work[verb])
            lost = MessageLockLostError.condition
            assert condition == (lost if letter is None else "amqp:not-allowed")
            REACHED["late settle" if letter is None else "bury twice"] += 1
            return
        work[verb]()
        if verb in {"abandon", "defer"}:
            letter.words["n"] = properties
        match verb:
            case "complete":
                self.model.letters.remove(letter)
            case "bury":
                self.model.bury(letter, "Bad")
            case _:
                letter.state = "deferred" if verb == "defer" else letter.state
                self.model.put_back(letter, self.now, counts=verb == "abandon")
        self.a_listener_has_what_it_can_take()

    def _refusal_of(self, work: Callable[[], None]) -> str:
        with pytest.raises(BrokerError) as refusal:
            work()
        return refusal.value.condition

    def renew(self, choices: list[tuple[str, bytes]]) -> None:
        """Renew all of these locks or none."""
        tokens = [choice for choice in choices if choice[0] == QUEUE]
        if not tokens:
            return
        letters = [self.model.locked(token, place, self.now) for place, token in tokens]
        names = [lock_token(token) for _, token in tokens]
        reply = self.ask(self.queue, "renew-lock", lock_tokens=names)
        assert reply.status == (410 if None in letters else 200)
        for letter in letters if reply.status == 200 else ():
            assert letter is not None
            letter.until = self.now + self.model.lock_s
            REACHED["renewed"] += 1

    @rule(index=INDEX, place=PLACES, presettled=RARELY, cancels=st.booleans())
    def name_a_number(self, index: int, place: str, presettled: bool, cancels: bool) -> None:
        if index > 1 and not any(x.state == "deferred" for x in self.model.letters):
            self.take(place, count=1, presettled=False, then="defer")
        if cancels:
            self.cancel(index)
        else:
            self.take_deferred(index, place, presettled)

    def take_deferred(self, index: int, place: str, presettled: bool) -> None:
        """Ask for a message by its number; only one that is deferred and free is given."""
        number = self.letter_of(index, place, "deferred")
        free = [
            letter
            for letter in self.model.letters
            if (letter.number, letter.place) == (number, place)
            and (letter.state, letter.token) == ("deferred", None)
        ]
        reply = self.ask(
            self.place_of(place),
            "receive-by-sequence-number",
            sequence_numbers=[number] * (1 + index % 2),
            receiver_settle_mode=0 if presettled else 1,
        )
        assert reply.status == (200 if free else 404)
        for letter in free:
            REACHED["deferred"] += 1
            (entry,) = decode.decode(reply.body)[0]["messages"]
            if presettled:
                self.model.letters.remove(letter)
            else:
                letter.token = entry["lock-token"].bytes_le
                letter.until = self.now + self.model.lock_s
                self.tokens.append((place, entry["lock-token"].bytes_le))

    def cancel(self, index: int) -> None:
        number = self.letter_of(index, QUEUE, "scheduled")
        scheduled = [
            letter
            for letter in self.model.letters
            if (letter.number, letter.state) == (number, "scheduled")
        ]
        reply = self.ask(self.queue, "cancel-scheduled-message", sequence_numbers=[number] * 2)
        assert reply.status == (200 if scheduled else 404)
        for letter in scheduled:
            self.model.letters.remove(letter)

    @rule(
        seconds=st.integers(0, 4),
        sweeps=MOSTLY,
        renews=st.lists(INDEX, max_size=2),
        late=st.sampled_from([None, None, *VERBS]),
    )
    def wait(self, seconds: int, sweeps: bool, renews: list[int], late: str | None) -> None:
        """Time passes, and the sweep comes or does not; or the fault `expire-locks` ends all locks.

        Some holders renew their locks before, in one request: all of them or none. A holder may
        settle after the time has passed and before the sweep.
        """
        holder = self.token_of(len(renews), live=True)
        choices = [self.token_of(index, live=index < 5) for index in renews]
        self.renew([choice for choice in choices if choice is not None])
        self.now += seconds
        if late and holder is not None:
            self.settle_with(late, *holder, properties=seconds)
        if seconds == 0:
            self.take(DEAD, count=1, presettled=False, then=None)
            letters = [x for x in self.model.letters if x.token is not None]
            letters = letters if late else [x for x in letters if x.place == QUEUE]
            assert self.broker.expire_locks("" if late else "q") == len(letters)
            for letter in letters:
                letter.until = self.now
        if sweeps or seconds == 0:
            self.sweep()
            self.model.time_passes(self.now)

    @rule(lock_s=LOCKS, deliveries_max=st.integers(1, 3), buries=st.booleans(), deletes=RARELY)
    def change(self, lock_s: int, deliveries_max: int, buries: bool, deletes: bool) -> None:
        """Change the queue: locks keep their ends, counts apply from the next delivery on.

        Or delete it and create it again: nothing of it is left, its tokens neither.
        """
        if deletes:
            self.create_again()
            self.model = QueueModel()
            self.listener = None
            return
        self.broker.update_queue(
            "q",
            lock_duration_s=lock_s,
            max_delivery_count=deliveries_max,
            dead_letter_on_expiration=buries,
        )
        self.model.lock_s, self.model.deliveries_max = lock_s, deliveries_max
        self.model.buries = buries

    @rule(kind=st.sampled_from(["commit", "stop", "kill", "kill unwritten"]))
    def end(self, kind: str) -> None:
        """Make durable what has happened, or end the broker and start it again."""
        if kind == "commit":
            self.commit_all()
            return
        self.end_life(commits=kind == "kill", cleanly=kind == "stop")
        self.listener = None
        assert self.queue.last_sequence >= self.model.last
        self.model.last = self.queue.last_sequence
        REACHED["locked over a restart"] += bool(self.queue.locked)

    # -- what must be true -----------------------------------------------------------------------

    def note_deliveries(self, place: str, receiver: Receiver) -> None:
        """Lock or remove in the model what a receiver got; it was ready."""
        for message, token in receiver.deliveries:
            ready = {letter.number: letter for letter in self.model.ready(place, self.now)}
            letter = ready[message.sequence]
            if receiver.presettled:
                self.model.letters.remove(letter)
            else:
                letter.token, letter.until = token, self.now + self.model.lock_s
            self.tokens.append((place, token))
        receiver.deliveries.clear()

    @invariant()
    def a_listener_has_what_it_can_take(self) -> None:
        if self.listener is not None:
            place, receiver = self.listener
            self.note_deliveries(place, receiver)
            assert not receiver.credit or not self.model.ready(place, self.now)

    @invariant()
    def each_place_has_what_the_model_has(self) -> None:
        for place in (QUEUE, DEAD):
            queue = self.place_of(place)
            letters = [letter for letter in self.model.letters if letter.place == place]
            letters.sort(key=lambda letter: letter.number)
            actual = [
                (m.sequence, m.state, m.delivery_count, m.token, m.token and m.locked_until,
                 m.expires_at, m.size, words_of(m))
                for _, m in sorted(queue.messages.items())
            ]  # fmt: skip
            assert actual == [
                (x.number, STATES.get(x.state, MessageState.ACTIVE), x.count, x.token,
                 x.token and x.until, x.expires, x.size, x.words)
                for x in letters
            ]  # fmt: skip
            assert queue.bytes == sum(letter.size for letter in letters)
            assert queue.scheduled_count == sum(x.state == "scheduled" for x in letters)
            assert set(queue.locked) == {x.token for x in letters if x.token is not None}
            peeked = operations.peek(queue, 0, count=100, session_id=None, now=self.now)
            assert [message.sequence for message in peeked] == [
                x.number
                for x in letters
                if x.token or x.state == "deferred" or not is_over(x.expires, self.now)
            ]

    @invariant()
    def a_sweep_is_planned_for_whatever_is_due_next(self) -> None:
        moments = [
            x.until if x.token is not None else x.at if x.state == "scheduled" else x.expires
            for x in self.model.letters
            if x.token is not None or x.state != "deferred"
        ]
        due = min((at for at in moments if at is not None), default=None)
        planned = self.broker.namespace.next_due()
        assert due is None or (planned is not None and planned <= max(due, self.now))


def words_of(message: Any) -> dict[str, Any]:
    words = application_properties(message)
    return {name: words[name] for name in ("n", "DeadLetterReason") if name in words}


TestQueue = QueueMachine.TestCase
TestQueue.settings = PROFILE
