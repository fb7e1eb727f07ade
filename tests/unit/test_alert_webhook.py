"""Alerts are copied to the webhook's queue, and posted from there, signed, until they are taken."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import timedelta

import pytest

from sas.codec.outward import AlertMessage
from sas.config import SettingError, read_config
from sas.domain.ids import key_time
from sas.domain.queues import Queues
from sas.engine.delivery import Delivery
from sas.engine.messages import Addresses, alert
from sas.engine.receiver import FIRST_AT
from sas.features.alert_webhook import (
    KEPT_FOR,
    AlertCopies,
    AlertWebhook,
    Webhook,
    WebhookAwayError,
    signed,
)
from sas.ports import BusUnavailableError, Message
from sas.testing.bus import MemoryBus
from sas.testing.clock import START, VirtualClock
from sas.testing.store import MemoryStore

QUEUES = Queues()
KEY = bytes(range(200, 232))
BODY = b'{"kind":"step-failed"}'
URL = "https://alerts.example.com/hooks/t0ken"
GIVEN = {"SAS_ALERT_WEBHOOK_URL": URL, "SAS_ALERT_WEBHOOK_SECRET": ""}


def random_key(prefix: str = "") -> str:
    digest = hashlib.sha256(b"a key of the tests").digest()
    return prefix + base64.b64encode(digest).decode()


def webhook_of(given: Mapping[str, str]) -> Webhook:
    least = {"ServiceBus": "Endpoint=sb://s", "SAS_TABLES": "UseDevelopmentStorage=true"}
    return read_config(least | dict(given)).alert_webhook


class Receiver:
    """A webhook with scripted answers."""

    def __init__(self, *refusals: str) -> None:
        self.refusals = list(refusals)
        self.seen: list[tuple[str, Mapping[str, str], bytes]] = []

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> str:
        self.seen.append((url, headers, body))
        return self.refusals.pop(0) if self.refusals else ""


def handled(receiver: Receiver, clock: VirtualClock) -> AlertWebhook:
    return AlertWebhook(clock, Webhook(URL, (KEY,)), receiver.post)


def copy_of(clock: VirtualClock, **changes: object) -> Delivery:
    said = {"properties": {}, "enqueued_at": clock.now()} | changes
    return Delivery(BODY, "O.1/4/1", QUEUES.alert_copies, **said)  # type: ignore[arg-type]


def test_a_receiver_verifies_the_signature_as_standard_webhooks_describes() -> None:
    headers = signed("O.1/4/1", BODY, START, (KEY,))
    text = b".".join((headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), BODY))
    digest = hmac.new(KEY, text, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert int(headers["webhook-timestamp"]) == int(START.timestamp())
    assert "." not in headers["webhook-id"]


def test_every_key_signs_so_that_the_receiver_can_change_its_key() -> None:
    both = signed("m", BODY, START, (KEY, KEY[::-1]))["webhook-signature"].split()
    assert both == [
        signed("m", BODY, START, (one,))["webhook-signature"] for one in (KEY, KEY[::-1])
    ]


def test_another_body_another_time_and_another_alert_have_another_signature() -> None:
    said = [
        signed("m", BODY, START, (KEY,)),
        signed("m", BODY + b" ", START, (KEY,)),
        signed("m", BODY, START + timedelta(seconds=1), (KEY,)),
        signed("n", BODY, START, (KEY,)),
    ]
    assert len({one["webhook-signature"] for one in said}) == 4


async def test_an_alert_is_posted_whole_and_its_repeat_has_the_same_id() -> None:
    clock, receiver = VirtualClock(), Receiver()
    for _ in range(2):
        await handled(receiver, clock).handle(copy_of(clock))
    (url, first, body), (_, second, _) = receiver.seen
    assert (url, body) == (URL, BODY)
    assert first["webhook-id"] == second["webhook-id"]


async def test_an_alert_that_is_not_taken_is_put_back_and_the_address_is_shown_nowhere() -> None:
    clock = VirtualClock()
    with pytest.raises(WebhookAwayError) as away:
        await handled(Receiver("answered 503"), clock).handle(copy_of(clock))
    assert str(away.value) == "the alert webhook answered 503"
    assert URL not in repr(Webhook(URL, (KEY,)))
    assert repr(KEY) not in repr(Webhook(URL, (KEY,)))


async def test_an_alert_that_is_never_taken_is_given_up_after_thirty_days(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    old = {FIRST_AT: key_time(clock.now() - KEPT_FOR)}
    await handled(Receiver("answered 400"), clock).handle(copy_of(clock, properties=old))
    assert "O.1/4/1 was not taken for 30 days" in caplog.text
    young = {FIRST_AT: key_time(clock.now() - KEPT_FOR + timedelta(minutes=1))}
    with pytest.raises(WebhookAwayError):
        await handled(Receiver("answered 400"), clock).handle(copy_of(clock, properties=young))


async def test_a_time_that_cannot_be_read_does_not_make_an_alert_poison() -> None:
    clock = VirtualClock()
    copy = copy_of(clock, properties={FIRST_AT: "soon"})
    with pytest.raises(WebhookAwayError):
        await handled(Receiver("answered 503"), clock).handle(copy)


async def test_a_copy_waits_for_an_instance_that_has_the_setting() -> None:
    clock, receiver = VirtualClock(), Receiver()
    with pytest.raises(WebhookAwayError, match="SAS_ALERT_WEBHOOK_URL"):
        await AlertWebhook(clock, Webhook(), receiver.post).handle(copy_of(clock))
    assert receiver.seen == []


def system(*queues: str) -> tuple[MemoryStore, MemoryBus, AlertCopies]:
    clock, store = VirtualClock(), MemoryStore()
    bus = MemoryBus(clock)
    bus.declare(*queues, QUEUES.scheduler)
    bus.declare(QUEUES.alerts, duplicate_window=timedelta(days=7))
    return store, bus, AlertCopies(store, bus, clock, QUEUES)


def an_alert() -> Message:
    body = AlertMessage(kind="step-failed", at=key_time(START), text="it failed", id="O-1/4/1")
    return alert(body, Addresses(QUEUES, "/test"))


async def test_an_alert_stays_on_its_queue_and_a_copy_goes_to_the_webhook() -> None:
    _, bus, copies = system(QUEUES.alert_copies)
    await copies.send([an_alert()])
    await copies.send([Message(QUEUES.scheduler, "w", b"{}")])
    (kept,), (copy,) = bus.messages(QUEUES.alerts), bus.messages(QUEUES.alert_copies)
    assert (copy.message_id, copy.body) == (kept.message_id, kept.body)
    assert len(bus.messages(QUEUES.scheduler)) == 1


async def test_a_copy_that_its_queue_does_not_take_is_held_and_the_alert_is_sent() -> None:
    store, bus, copies = system(QUEUES.alert_copies)
    bus.queues[QUEUES.alert_copies].refuses = True
    await copies.send([an_alert()])
    assert len(bus.messages(QUEUES.alerts)) == 1
    (held,) = [row for shard in store._due.values() for row in shard.values()]
    assert held is not None


async def test_a_missing_queue_of_copies_holds_up_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, bus, copies = system()
    await copies.send([an_alert()])
    assert len(bus.messages(QUEUES.alerts)) == 1
    assert "does not go to the webhook" in caplog.text


async def test_an_alert_that_could_not_be_sent_has_no_copy_yet() -> None:
    _, bus, copies = system(QUEUES.alert_copies)
    bus.queues[QUEUES.alerts].refuses = True
    with pytest.raises(BusUnavailableError):
        await copies.send([an_alert()])
    assert bus.messages(QUEUES.alert_copies) == []


def test_without_a_setting_there_is_no_webhook() -> None:
    assert not webhook_of({})
    assert not webhook_of({"SAS_ALERT_WEBHOOK_URL": "", "SAS_ALERT_WEBHOOK_SECRET": ""})


@pytest.mark.parametrize("prefix", ["", "whsec_"])
def test_keys_are_base64_as_the_tools_of_standard_webhooks_print_them(prefix: str) -> None:
    text = random_key(prefix)
    webhook = webhook_of(GIVEN | {"SAS_ALERT_WEBHOOK_SECRET": f"{text}, {text}"})
    assert webhook.url == URL
    assert webhook.keys == (hashlib.sha256(b"a key of the tests").digest(),) * 2


@pytest.mark.parametrize(
    "key", ["", "short", "c2hvcnQ=", base64.b64encode(b"a" * 23).decode(), "ä" * 44]
)
def test_a_key_that_is_short_or_not_base64_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(SettingError, match="SAS_ALERT_WEBHOOK_SECRET") as refused:
        webhook_of(GIVEN | {"SAS_ALERT_WEBHOOK_SECRET": key})
    assert not key or key not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["", "http://alerts.example.com/t0ken", "ftp://a", "https://", "https://a b", "nowhere"]
)
def test_an_address_that_others_could_read_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SettingError, match="SAS_ALERT_WEBHOOK_URL") as refused:
        webhook_of({"SAS_ALERT_WEBHOOK_URL": url, "SAS_ALERT_WEBHOOK_SECRET": random_key()})
    assert "t0ken" not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:1"])
def test_this_machine_may_be_posted_to_without_tls(host: str) -> None:
    said = {
        "SAS_ALERT_WEBHOOK_URL": f"http://{host}/x",
        "SAS_ALERT_WEBHOOK_SECRET": random_key(),
    }
    assert webhook_of(said)
