"""The pages of the desk, over the actors in memory: what an operator reads and does there."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from datetime import timedelta
from html import escape, unescape
from pathlib import Path
from urllib.parse import parse_qs, urlencode

import pytest

from sas.codec.external import Rejection, encode, rejected_message
from sas.codec.payloads import decode_content, encode_content
from sas.desk import server
from sas.domain.change import Incident
from sas.domain.messages import AlertKind
from sas.domain.order import Fault
from sas.domain.texts import is_visible, visible
from sas.features.circuit_breaker.rules import Breaker, BreakerState
from sas.ports import AwaitCallback, RefusedError
from sas.testing.store import StoreFault
from tests.contract import cases
from tests.integration.desk_kit import IDS, desk_of, words
from tests.payload_codec_kit import CheapCodec
from tests.unit import actors_kit
from tests.unit.actors_kit import (
    CARE,
    CHAIN,
    DECLINED,
    QUEUES,
    Kit,
    fail,
    kit,
    night,
    order,
    submit,
)

REJECTED = QUEUES.rejected


async def test_the_overview_says_how_many_orders_need_you_and_how_they_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk_of(await night()) as browser:
        page = await browser.look("")
        listed = await browser.look("orders")
        monkeypatch.setattr(server, "SHOWN_MAX", 2)
        assert "All 3 orders in Error" in await browser.look("")
    assert "3 orders need you." in page
    groups = f"2 pay card-declined .*{DECLINED} .* Resubmit these 2…"
    for failures in (page, listed):  # the groups come first, and then the orders
        assert re.search(f"{groups}.* 10248 care pay ", failures)
    assert re.search("1 reserve sold-out .*nothing is left of product 11 .* Resubmit it…", page)
    assert "3 in Error" in page
    assert "1 Processed in the last hour" in page
    assert "1 completed, 0 undone, 3 failed" in page


async def test_the_overview_shows_what_is_wrong_and_counts_what_needs_you() -> None:
    """A circuit that is open ends by itself."""
    system = await night()
    now = system.clock.now()
    for kind in (AlertKind.AGENT_FAILING, AlertKind.BREAKER_OPEN):
        incident = Incident(
            kind=kind,
            scope=f"agent {kind.value}",
            text="It <b> fails. Deploy.",
            since=now,
            until=now,
        )
        await system.context.incidents.report(incident)
    async with desk_of(system) as browser:
        page = await browser.look("")
    assert "3 orders and 1 problem need you." in page
    assert page.count("It <b> fails. Deploy.") == 2


async def test_an_orders_page_says_what_happened_what_it_waits_for_and_what_verbs_do() -> None:
    system = await night()
    await system.later(1.25)
    await system.hand(actors_kit.command("acknowledge", system.order("10248").seq, "w", "10248"))
    row = system.journal("10248")[-1]
    async with desk_of(system) as browser:
        html = await browser.get("order?id=10248")
    page = words(html)
    assert f"It stopped at pay: “{DECLINED}”." in page
    waits = "It waits for You. It goes on only after a command. Agent payment : circuit closed"
    assert waits in page
    assert f"Run again: pay (“card-declined: {DECLINED}”)." in page
    assert "Undo the order (there is no way back); these steps began" in page
    assert "step failed by agent payment" in page
    moment = row.at.isoformat(timespec="milliseconds")
    clock = moment[:-6].replace("T", " ")
    assert f'<time datetime="{moment}" title="{clock[:-4]} UTC" data-clock="exact">{clock}' in html
    assert re.search(r"\+1 min \d+ s", page)  # from row to row


@pytest.mark.parametrize("has_rules", [True, False])
async def test_an_orders_page_shows_its_steps_as_a_picture_with_their_states(
    has_rules: bool,
) -> None:
    system = kit(CHAIN)
    system.agents["payment"].then(RefusedError("x", "y"))
    await submit(system, "10248", "chain")
    async with desk_of(system) as browser:
        if not has_rules:
            browser.desk.office = replace(browser.desk.office, workflows=None)
        page = await browser.get("order?id=10248")
    label = r'aria-label="reserve, Compensated · stock, [\d.]+ s in 2 attempts\. pay, '
    assert re.search(label, page)
    assert len(re.findall(r'<g class="compensated"><title>', page)) == 2
    assert ("<path d=" in page) is has_rules
    assert ("shows no order between the steps" in page) is not has_rules
    assert "style=" not in page  # the browser would refuse it


async def test_a_wait_for_a_callback_is_told_and_an_operator_ends_it_in_its_place() -> None:
    system = kit(CARE)
    wait = AwaitCallback(timedelta(days=2), "the manager approves")
    system.agents["stock"].then(wait, wait)
    for order_id in ("10248", "10249"):
        await submit(system, order_id)
    link = "order?id=10248"
    async with desk_of(system) as browser:
        page = await browser.look(link)
        assert "It waits for The callback of reserve: “the manager approves”." in page
        assert "waits for the callback" in page
        listed = await browser.look("orders?state=under-way")
        assert "The callback of reserve: “the manager approves”." in listed
        form = {"verb": "callback", "seq": str(system.order("10248").seq), "step": "reserve"}
        status, page = await browser.post(link, code="\x1b", input="", **form)
        assert (status, "the code of the refusal is" in page.lower()) == (409, True)
        done = form | {"input": '{"amount": 80}', "reason": "by phone"}
        _, where = await browser.post(link, **done)
        form |= {"code": "too-dear", "reason": "50 is the most", "input": ""}
        await browser.post("order?id=10249", **form)
        await browser.desk.sender.settled()
        page = await browser.look(where)
    assert system.order("10248").steps[0].result == '{"amount": 80}'
    assert "Done: callback is row" in page
    assert "step processed by operator ann by phone" in page
    assert system.order("10249").steps[0].error == Fault("too-dear", "50 is the most")


async def test_a_step_that_fails_again_is_reported_for_one_order_and_for_many() -> None:
    system = await night()
    system.agents["payment"].then(*[RefusedError("card-declined", DECLINED)] * 3)
    async with desk_of(system) as browser:
        seq = str(system.order("10248").seq)
        _, where = await browser.post("order?id=10248", verb="resubmit", seq=seq)
        await browser.desk.sender.settled()
        order_page = await browser.look(where)
        await browser.desk.watch.look()
        page = await browser.get("orders?state=error&fingerprint=pay/card-declined")
        address, fields = group_form(page)
        _, where = await browser.post(address, **fields)
        await browser.desk.sender.settled()
        group_page = await browser.look(where)
    assert (
        f"It failed again: pay (“card-declined: {DECLINED}”). The order is Error now" in order_page
    )
    assert "Done: " not in order_page
    assert "Carried out: 2 of 2. Failed again: 2." in group_page
    assert f"10249 : pay (“card-declined: {DECLINED}”)" in group_page


async def test_other_input_reaches_the_step_under_a_new_key() -> None:
    system = await night()
    async with desk_of(system) as browser:
        seq = str(system.order("10248").seq)
        await browser.post("order?id=10248", verb="resubmit", seq=seq, input='{"amount": 9.5}')
    _, call = system.agents["payment"].calls[-1]
    assert (call.key, call.order) == ("10248/pay/1", {"amount": 9.5})


async def test_an_order_that_somebody_changed_refuses_the_form_and_keeps_what_was_typed() -> None:
    system = await night()
    async with desk_of(system) as browser:
        seq = system.order("10248").seq
        await system.hand(actors_kit.command("acknowledge", seq, "w-bob", "10248"))
        form = {"seq": str(seq), "step": "pay", "input": '{"amount": 1}', "reason": "try"}
        status, page = await browser.post("order?id=10248", verb="resubmit", **form)
    assert status == 409
    assert f"Nothing was sent: you saw seq {seq}, but the order is at seq {seq + 1} (Error)" in page
    assert "acknowledged by operator ann" in page
    assert '{"amount": 1}' in page
    assert browser.line.sent_messages == []


async def test_a_wrong_form_is_one_sentence_and_sends_nothing() -> None:
    system = await night()
    async with desk_of(system) as browser:
        form = {"verb": "resubmit", "seq": str(system.order("10248").seq)}
        for mistake, sentence in (
            ({"input": "{"}, "The input: the body is not JSON"),
            ({"seq": "now"}, "The form names no seq"),
            ({"step": "nosuch"}, "it has no step 'nosuch'"),
            ({"verb": "explode"}, "There is no verb 'explode'"),
        ):
            status, page = await browser.post("order?id=10248", **(form | mistake))
            assert (status, sentence in page) == (409, True), page
        assert browser.line.sent_messages == []


async def test_a_command_that_the_scheduler_refuses_says_why() -> None:
    system = await night()
    async with desk_of(system) as browser:
        browser.line.runs = False
        seq = system.order("10248").seq
        _, where = await browser.post("order?id=10248", verb="resubmit", seq=str(seq))
        assert "Waiting for the scheduler" in await browser.look(where)
        await system.hand(actors_kit.command("acknowledge", seq, "w-bob", "10248"))
        await browser.desk.sender.settled()
        page = await browser.look(where)
    assert "Resubmit changed nothing: not carried out: you saw seq" in page


def group_form(page: str) -> tuple[str, dict[str, str]]:
    """The address and the hidden fields of the form that resubmits a group."""
    (address,) = re.findall(r'method="post" action="([^"]+)"', page)
    return unescape(address), dict(re.findall(r'name="(at)" value="([^"]*)"', page))


async def test_the_orders_of_a_group_are_resubmitted_as_they_were_shown() -> None:
    """An order that failed after the page was shown, or once more, stays as it is."""
    system = await night()
    async with desk_of(system) as browser:
        await browser.desk.watch.look()
        page = await browser.get("orders?state=error&fingerprint=pay/card-declined")
        assert "Resubmit these 2" in page
        system.agents["payment"].then(RefusedError("card-declined", "again"))
        await system.hand(actors_kit.command("resubmit", system.order("10249").seq, "w", "10249"))
        await system.drain()
        await fail(system, "later", agent="payment", code="card-declined", message=DECLINED)
        address, fields = group_form(page)
        fields |= {"reason": "card service"}
        status, where = await browser.post(address, **fields)
        assert status == 303
        await browser.desk.sender.settled()
        report = await browser.look(where)
        again, _ = await browser.post(address, **fields)
    assert "Carried out: 1 of 1. 10248" in report
    states = [system.state(order_id) for order_id in ("10248", "10249", "10250", "later")]
    assert states == ["Processed", "Error", "Error", "Error"]
    assert again == 404


async def test_an_outage_is_one_card_and_the_headline_until_it_ends_by_itself() -> None:
    system = kit(CARE)
    at = system.clock.now()
    breaker = Breaker(state=BreakerState.OPEN, since=at, until=at, rounds=1, why="http-503")
    await actors_kit.keep_breaker(system.store, breaker, "payment")
    incidents = [
        Incident(kind=kind, scope=kind.value, text="x.", since=at, until=at, agent="payment")
        for kind in (AlertKind.BREAKER_OPEN, AlertKind.WAITING)
    ]
    async with desk_of(system) as browser:
        await browser.desk.inboxes.look_at_all()
        page = await browser.look("")
        assert 'class="hero wait"' in await browser.get("")
        assert "The circuit of agent payment is open. It ends by itself." in page
        assert "Nothing needs you." not in page
        for incident in incidents:
            await system.context.incidents.report(incident)
        await fail(system, "10248", agent="payment", code="x", message="y")
        page = await browser.look("order?id=10248")
        assert "Agent payment : circuit open since" in page
        assert "( http-503 )" in page
        page = await browser.get("")
        problems = page[page.index('id="problems"') : page.index('id="failures"')]
        assert problems.count("<li") == 1
        assert "The circuit of agent payment is open: “http-503”. These wait: waiting." in problems
        await actors_kit.keep_breaker(system.store, Breaker(), "payment")
        assert "1 order needs you." in await browser.look("")


async def test_a_queue_that_cannot_be_read_is_on_the_overview_until_soon_after_its_repair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sas.desk.inboxes.PEEK_EVERY_S", 0.05)
    monkeypatch.setattr("sas.desk.inboxes.REPAIR_EVERY_S", 0.05)
    async with desk_of(kit(CARE)) as browser, asyncio.timeout(20):
        browser.line.outage = "The queue is disabled."
        while "Queues orders-rejected" not in (page := await browser.look("")):
            pass  # until the timeout above
        monkeypatch.setattr("sas.desk.inboxes.PEEK_EVERY_S", 600)
        queues = browser.desk.watch.queues
        while browser.desk.watch.queues is queues:
            await browser.look("")
        browser.line.outage = ""
        while "Nothing needs you." not in await browser.look(""):
            pass
    assert "1 problem needs you." in page
    assert re.search("Queues orders-rejected, .* cannot be read: The queue is disabled", page)
    assert re.search(r"queue orders-rejected, .* queues read \d+ s ago", page)


async def test_before_the_queues_were_read_nothing_is_claimed_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("sas.desk.inboxes.queue_counts", silent)
    async with desk_of(kit(CARE)) as browser:
        page = await browser.look("")
    assert "Reading the queues…" in page
    assert "Nothing needs you." not in page
    assert "queues read" not in page


async def test_alerts_of_one_cause_are_one_and_those_of_repaired_orders_are_counted() -> None:
    system = await night()
    await system.submit(b"{not json", "m-bad")
    async with desk_of(system) as browser:
        alerts = await browser.look("inbox?name=alerts")
        assert "not-json" in await browser.look("inbox?name=rejected")
        assert "Alerts 3 Rejected messages 1" in await browser.look("")
        assert "step-failed 2 times since" in alerts
        assert "Orders 10249 , 10248" in alerts
        await system.hand(actors_kit.command("undo", system.order("10248").seq, "w-1", "10248"))
        await system.drain()
        await browser.desk.watch.look()
        assert "1 more alert needs nothing any more" in await browser.look("inbox?name=alerts")


async def test_a_rejected_message_whose_order_ended_well_is_counted_as_over_alone() -> None:
    system = kit(CARE)
    rejection = Rejection(
        body=b"{}",
        reason="dead-lettered",
        description="its function was killed",
        source_queue="scheduler",
        message_id="m",
        order_id="A-1",
    )
    message = rejected_message(rejection, at=system.clock.now(), own_id="rejected/0/1")
    async with desk_of(system) as browser:
        browser.line.put(REJECTED, encode(message), message_id=message.id)
        await browser.desk.inboxes.look_at_all()
        assert "1 problem needs you." in await browser.look("")
        assert "Look at its order" in await browser.look("inbox?name=rejected")
        await system.later(1)
        await submit(system, "A-1")
        await browser.desk.watch.look()
        await browser.desk.inboxes.look_at_all()
        assert "Nothing needs you." in await browser.look("")
        assert 'class="hero good"' in await browser.get("")
        page = await browser.look("inbox?name=rejected")
    assert "1 more message needs nothing any more: repaired. sas messages remove" in page
    assert "Nothing else is here." in page


async def test_content_is_read_only_when_it_is_asked_for() -> None:
    system = await night()
    async with desk_of(system) as browser:
        assert "12.5" not in await browser.get("order?id=10248")
        for query in ("content=1", "edit=1"):
            assert "12.5" in await browser.get(f"order?id=10248&{query}")


async def test_encoded_content_is_shown_and_sent_decoded_only_by_a_desk_with_the_codec() -> None:
    system = kit(beside=await night(), codec=CheapCodec())
    for order_id in ("10248", "10249"):
        stored = system.store.orders[order_id]
        payload = encode_content('{"amount":12.50}', CheapCodec())
        stored.order = replace(stored.order, details=replace(stored.order.details, payload=payload))
    seq, calls = str(system.order("10248").seq), system.agents["payment"].calls
    async with desk_of(system) as browser:
        page = await browser.get("order?id=10248&content=1&edit=1")
        assert '<pre tabindex="0">encrypted</pre>' in page
        assert "$encoded" not in page
        await browser.post("order?id=10248", verb="resubmit", seq=seq, input="")
        assert (calls[-1][1].key, calls[-1][1].order) == ("10248/pay", {"amount": 12.50})
    async with desk_of(system, codec=CheapCodec()) as browser:
        assert "12.50" in await browser.get("order?id=10249&content=1&edit=1")
        await browser.post("order?id=10249", verb="resubmit", seq=seq, input='{"amount": 1}')
    (message,) = browser.line.sent_messages
    encoded = json.dumps(json.loads(message.body)["input"])
    assert decode_content(encoded, CheapCodec()) == '{"amount":1}'
    assert calls[-1][1].order == {"amount": 1}


async def test_where_the_message_of_an_order_lies_is_looked_up_when_it_is_asked_for() -> None:
    system = await night()
    await system.submit(actors_kit.order("10252", workflow="care"), "m-10252")
    async with desk_of(system) as browser:
        assert "Look for its message in the queues" in await browser.look("order?id=10252")
        page = await browser.look("order?id=10252&where=1")
        for order_id in ("10248", "10251"):  # in Error, and finished
            assert "Look for its message" not in await browser.look(f"order?id={order_id}")
    assert "Its message: in scheduler since" in page


async def test_while_the_store_is_away_the_last_picture_stays_and_each_page_reports_it() -> None:
    system = await night()
    async with desk_of(system) as browser:
        await browser.look("")
        system.store.partitions_away = system.store.partitions
        system.store.plan = lambda _operation, _key: StoreFault.UNAVAILABLE
        async with asyncio.timeout(60):
            while not browser.desk.watch.picture.problem:
                await browser.desk.watch.changed(browser.desk.watch.picture.version)
        page = words(await browser.get(""))
        assert "3 orders need you." in page
        assert "The state store does not answer. What you see is from" in page
        await browser.get("order?id=10248", 503)
        system.store.plan = lambda _operation, _key: None
        async with asyncio.timeout(60):
            while browser.desk.watch.picture.problem:
                await browser.desk.watch.changed(browser.desk.watch.picture.version)
        assert "does not answer" not in await browser.get("")


async def test_a_store_that_does_not_answer_is_named_before_it_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sas.desk.server.PATIENCE_S", 1)
    monkeypatch.setattr("sas.desk.server.ANSWER_S", 0.3)
    system = await night()

    async def silent(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(system.store, "attention", silent)
    monkeypatch.setattr(system.store, "load", silent)
    async with desk_of(system) as browser:
        await asyncio.sleep(1.1)
        page = words(await browser.get(""))
        assert "Reading the orders…" in page
        assert re.search(r"Waiting for the state store \(table orders\): .* for \d s\.", page)
        assert "The state store has not answered for 0.3 s" in words(
            await browser.get("order?id=10248", 503)
        )


async def test_a_page_gets_an_event_only_when_its_order_changes() -> None:
    system = await night()
    async with desk_of(system) as browser:
        where = browser.url("live?order=10248")
        async with browser.http.get(where) as stream, asyncio.timeout(60):
            await system.hand(
                actors_kit.command("acknowledge", system.order("10249").seq, "w-1", "10249")
            )
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await stream.content.readline()
            await system.hand(
                actors_kit.command("acknowledge", system.order("10248").seq, "w-2", "10248")
            )
            assert await stream.content.readline() == b"data: changed\n"


async def test_the_address_of_a_list_names_its_filters_its_sort_and_its_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sas.desk.listing.PER_PAGE", 3)
    async with desk_of(await night()) as browser:
        for query, words in {
            "": "3 orders",
            "state=processed": "1 order",
            "state=all&page=2": "Page 2 of 2",
            "state=all&text=48": "1 order",
            "state=processed&workflow=x": "No order matches.",
            "state=all&text=102&workflow=care": "4 orders",
            "state=error&fingerprint=reserve/sold-out": "1 order",
            "page=999999&sort=x&state=y": "3 orders",
        }.items():
            assert f" {words}" in await browser.look(f"orders?{query}")
        listed = await browser.get("orders?state=all&sort=order")  # the newest would be first
    assert re.findall(r"data-row href=\"order\?id=([^\"]+)\"", listed)[:2] == ["10248", "10249"]


async def store_failed(system: Kit, order_id: str, fault: Fault, payload: str = "{}") -> None:
    """Store an order in Error that an earlier version took with an id of any characters."""
    change = cases.submitted(order_id, CARE.rules)
    details = replace(
        change.after.details, workflow=CARE.name, version=CARE.version, payload=payload
    )
    change = replace(change, after=replace(change.after, details=details))
    order = await system.store.commit(change)
    order = await system.store.commit(cases.claimed(order, CARE.rules))
    change = cases.refused(order, 0, CARE.rules)
    steps = (replace(change.after.steps[0], error=fault), *change.after.steps[1:])
    await system.store.commit(replace(change, after=replace(change.after, steps=steps)))


async def test_every_page_link_and_form_of_an_order_works_with_any_id() -> None:
    system = await night()
    for order_id in IDS:
        await store_failed(system, order_id, Fault("odd", "no"), '{"amount":12.5}')
    async with desk_of(system) as browser:
        for order_id in IDS:
            await browser.desk.watch.look()
            listed = await browser.get(f"orders?{urlencode({'state': 'all', 'text': order_id})}")
            links = {unescape(link) for link in re.findall(r'data-row href="([^"]+)"', listed)}
            link = f"order?{urlencode({'id': order_id})}"
            assert [parse_qs(link)] == [q for q in map(parse_qs, links) if q == parse_qs(link)]
            page = await browser.get(link)
            assert f"Resubmit {visible(order_id)}</button>" in unescape(page)
            assert "12.5" in await browser.get(f"{link}&content=1")
            (action,) = set(re.findall(r'method="post" action="([^"]+)"', page))
            seq = str(system.order(order_id).seq)
            status, where = await browser.post(unescape(action), verb="resubmit", seq=seq)
            assert status == 303
            await browser.desk.sender.settled()
            assert "Done: resubmit is row" in await browser.look(where)
            (live,) = re.findall(r'data-live-query="([^"]+)"', page)
            assert parse_qs(unescape(live))["order"] == [order_id]
            assert system.state(order_id) == "Processing"


async def test_texts_of_others_are_never_markup_and_show_what_is_invisible_in_them() -> None:
    system = await night()
    evil = "<script>\u202epaid\u2066\u200b\x9b31m</script>"
    await fail(system, "10253", agent="payment", code="<b>x", message=evil)
    await store_failed(system, "10252", Fault("<b>x", evil), json.dumps({"note": evil}))
    async with desk_of(system) as browser:
        await browser.desk.watch.look()
        await browser.desk.inboxes.look()
        for link in ("", "orders", "inbox?name=alerts", "order?id=10252&content=1&edit=1"):
            page = await browser.get(link)
            assert is_visible(page.replace("\n", " "))
            assert r"\u202epaid" in page
            assert "<script>" not in page
            assert "<b>x" not in page
        assert "<script>" not in await browser.get("orders?text=<script>")
        assert f"<q>{escape(visible(evil))}</q>" in page
        field = re.search(r'(?s)<textarea name="input"[^>]*>(.*?)</textarea>', page)
        assert field is not None
        assert json.loads(unescape(field[1])) == {"note": evil}
        seq = str(system.order("10252").seq)
        form = {"step": "reserve", "seq": seq, "input": unescape(field[1])}
        await browser.post("order?id=10252", verb="resubmit", **form)
    assert json.loads(browser.line.sent_messages[0].body).get("input") is None  # nobody changed it


async def test_what_does_not_exist_or_fails_is_one_sentence() -> None:
    system = await night()

    async def broken(_order_id: str) -> object:
        raise ValueError("the row of step 1 is missing")

    async with desk_of(system) as browser:
        assert "There is no order 'nosuch' here" in words(await browser.get("order?id=nosuch", 404))
        for link in ("inbox?name=nosuch", "sent?key=nosuch"):
            assert "Not possible" in await browser.get(link, 404)
        await browser.get("nosuch", 404)
        system.store.load = broken  # type: ignore[assignment]
        page = words(await browser.get("order?id=10248", 500))
    assert "This page cannot be shown: ValueError('the row of step 1 is missing')" in page


def test_no_page_composes_a_command_to_paste() -> None:
    for template in (Path(server.__file__).parent / "templates").iterdir():
        assert not re.search(r"\bsas [a-z -]*\{\{", template.read_text(encoding="utf-8")), template


async def test_an_order_taken_up_again_leaves_the_finished_ones() -> None:
    system = await night()
    async with desk_of(system) as browser:
        assert "1 order;" in await browser.look("orders?state=finished")
        system.agents["stock"].then(RefusedError("x", "cannot be undone"))
        await system.hand(actors_kit.command("undo", system.order("10251").seq, "w-1", "10251"))
        await system.drain()
        assert system.state("10251") == "Error"
        assert "No order matches." in await browser.look("orders?state=finished")
        assert "4 orders need you." in await browser.look("")


async def test_an_order_that_was_refused_is_listed_and_has_a_page_with_its_reason() -> None:
    system = await night()
    await system.submit(order("bad-1", workflow="nosuch"), "m-bad-1")
    async with desk_of(system) as browser:
        for state in ("rejected", "finished", "all"):
            listed = await browser.look(f"orders?state={state}")
            assert "bad-1 Rejected" in listed
            assert "unknown-workflow: " in listed
        assert "bad-1" not in await browser.look("orders?state=error")
        page = await browser.look("order?id=bad-1")
        assert "It was rejected and never began" in page
        assert "Send it again…" in page
        assert "bad-1" in await browser.look("inbox?name=rejected")
