"""Orders submitted, given up, submitted again, purged: by two instances that keep what they wrote.

The reference model is written from ``sas.actors.submission``, ``sas.actors.dead_letters`` and
``sas.engine.kept_orders``: an order that another instance changed is never the reason to do
nothing, and the journal is that of an order that nobody disturbed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from sas.ports import BusUnavailableError, Message, StoreUnavailableError
from sas.testing.bus import BusFault
from sas.testing.store import StoreFault
from tests.simulation.machines.kit import AsyncMachine
from tests.unit.actors_kit import AGENTS, QUEUES, SHOP, kit, letter, order

IDS, CONTENTS = st.sampled_from(["A", "B"]), st.sampled_from(["red", "blue"])
INSTANCES = st.integers(0, 1)
NONE, LOST_ANSWER, NO_WAKE = "none", "lost answer", "no wake"
FAULTS = st.sampled_from([NONE, NONE, LOST_ANSWER, NO_WAKE])
SUBMITTED, REJECTED, FENCED = "submitted", "rejected", "fenced"
INBOXES = [QUEUES.scheduler, *map(QUEUES.agent, AGENTS)]


@dataclass(kw_only=True)
class Place:
    """What is stored under an order id: whose content, and what each message led to."""

    content: str
    is_rejected: bool
    causes: dict[str, str] = field(default_factory=dict)


@dataclass
class SubmissionModel:
    """Each method returns the notifications that a message leads to."""

    places: dict[str, Place] = field(default_factory=dict)

    def submit(self, order_id: str, content: str, cause: str) -> list[str]:
        place = self.places.get(order_id)
        if place is not None and not place.is_rejected and place.content != content:
            return ["rejected"]  # the id is taken, whatever became of this message before
        if place is not None and cause in place.causes:  # recorded: sent again
            return ["received"] if place.causes[cause] == SUBMITTED else []
        if place is None or place.is_rejected:
            causes = {} if place is None else place.causes
            causes[cause] = SUBMITTED
            self.places[order_id] = Place(content=content, is_rejected=False, causes=causes)
        return ["received"]

    def give_up(self, order_id: str, content: str, cause: str) -> list[str]:
        place = self.places.get(order_id)
        if place is None:
            causes = {cause: REJECTED}
            self.places[order_id] = Place(content=content, is_rejected=True, causes=causes)
            return ["rejected"]
        if place.causes.setdefault(cause, FENCED) == SUBMITTED:  # finished
            return ["received"]
        goes_on = not place.is_rejected and place.content == content
        return [] if goes_on else ["rejected"]


class Submissions(AsyncMachine):
    """Applications, two instances, dead letters and the purge act on two order ids."""

    def __init__(self) -> None:
        super().__init__()
        self.model = SubmissionModel()
        self.messages: list[tuple[str, str]] = []

    @initialize()
    def start(self) -> None:
        undisturbed = kit()
        self.run(undisturbed.submit())
        self.run(undisturbed.drain())
        self.whole_journal = undisturbed.words()
        self.system = kit()
        self.instances = [self.system, kit(beside=self.system, instance="host-2")]

    @rule(order_id=IDS, content=CONTENTS, instance=INSTANCES, fault=FAULTS)
    def submit(self, order_id: str, content: str, instance: int, fault: str) -> None:
        self.messages.append((order_id, content))
        self._submit(len(self.messages) - 1, instance, fault)

    @precondition(lambda self: self.messages)
    @rule(number=st.integers(0, 5), instance=INSTANCES, fault=FAULTS)
    def submit_the_same_message_again(self, number: int, instance: int, fault: str) -> None:
        self._submit(len(self.messages) - 1 - number % len(self.messages), instance, fault)

    def _submit(self, number: int, instance: int, fault: str) -> None:
        order_id, content = self.messages[number]
        notices = self.model.submit(order_id, content, f"m-{number}")
        system, body = self.instances[instance], order(order_id, order={"colour": content})
        if fault == LOST_ANSWER:
            system.store.fail_next("commit", StoreFault.LOST_ANSWER)
        if fault == NO_WAKE:
            system.bus.plan = lambda message: (
                BusFault.UNAVAILABLE if message.queue == QUEUES.scheduler else None
            )
        try:
            self.run(system.submit(body, f"m-{number}"))
        except (StoreUnavailableError, BusUnavailableError):
            assert fault != NONE
            self.system.bus.plan = lambda _message: None
            self.system.bus.queues[SHOP].waiting.clear()
            self.run(system.submit(body, f"m-{number}"))  # it was put back
        self.system.bus.plan = lambda _message: None
        self.system.store._faults.clear()
        self._check(order_id, notices)

    @precondition(lambda self: self.messages)
    @rule(number=st.integers(0, 5), instance=INSTANCES)
    def give_up(self, number: int, instance: int) -> None:
        """The queue of orders gives a message up, handled or not."""
        number = len(self.messages) - 1 - number % len(self.messages)
        order_id, content = self.messages[number]
        body = order(order_id, order={"colour": content})
        system = self.instances[instance]
        dead = letter(body, QUEUES.orders, f"m-{number}")
        notices = self.model.give_up(order_id, content, f"m-{number}")
        self.run(system.run(system.dead_letters.handle(dead)))
        self._check(order_id, notices)

    @rule(inbox=st.sampled_from(INBOXES), instance=INSTANCES, is_repeated=st.booleans())
    def work(self, inbox: str, instance: int, *, is_repeated: bool) -> None:
        """One instance handles a message; the other one may get it once more."""
        message = self.system.bus.take(inbox)
        if message is not None:
            self._hand(message, instance)
            if is_repeated:
                self._hand(message, 1 - instance)

    def _hand(self, message: Message, instance: int) -> None:
        self.run(self.instances[instance].hand(message))
        self._check_journals()

    @rule(instance=INSTANCES)
    def finish(self, instance: int) -> None:
        """All that waits is handled, and what was missed is made good."""
        for _ in range(3):
            self.run(self.instances[instance].drain())
            self.run(self.system.later(31))
            self.run(self.instances[instance].sweep())
        for order_id, place in self.model.places.items():
            state = "Rejected" if place.is_rejected else "Processed"
            assert self.system.state(order_id) == state
        self._check_journals()

    @rule(order_id=IDS)
    def purge(self, order_id: str) -> None:
        stored = self.system.store.orders.get(order_id)
        if stored is not None and stored.order.process_state.value == "Processed":
            assert self.run(self.system.store.purge(stored.order)) == {order_id}
            del self.model.places[order_id]

    def _check(self, order_id: str, notices: list[str]) -> None:
        steps = {"step-completed", "completed"}
        events = [name for name in self.system.notices() if name not in steps]
        assert events == notices
        self._check_journals()
        place = self.model.places.get(order_id)
        if place is not None:
            stored = self.system.order(order_id)
            assert stored.details.payload == f'{{"colour": "{place.content}"}}'
            assert stored.rejected == place.is_rejected

    def _check_journals(self) -> None:
        self.system.bus.queues[SHOP].waiting.clear()
        assert set(self.system.store.orders) == set(self.model.places)
        for order_id, place in self.model.places.items():
            words = self.system.words(order_id)
            counts = [words.count(FENCED), words.count(REJECTED)]
            causes = list(place.causes.values())
            assert counts == [causes.count(FENCED), causes.count(REJECTED)]
            run = [word for word in words if word not in (FENCED, REJECTED)]
            assert run == self.whole_journal[: len(run)]


TestSubmissions = Submissions.TestCase
TestSubmissions.settings = settings(max_examples=25, stateful_step_count=30)
