"""The operator's command, as it is typed, against a running system: broker, host, Azurite."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage

from samples.remote_services import Faults
from sas.domain.ids import key_time
from sas.engine.delivery import DEPLOY_WAIT, LEFT_SINCE
from sas.engine.receiver import FIRST_AT
from sas.features.circuit_breaker.rules import Breaker, BreakerPolicy, opened
from tests.contract import cases
from tests.forked import Said, sas_said
from tests.functions_rig import EVERY_SECOND, Rig, body_of, rig, until
from tests.unit.actors_kit import keep_breaker, order

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def sas(system: Rig, *arguments: str, **environ: str) -> Said:
    """Run the command in a process of its own, without the app's settings."""
    settings = {name: system.settings[name] for name in ("ServiceBus", "SAS_TABLE")}
    settings["SAS_TABLES"] = system.azurite.connection_string
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SAS_")}
    env = inherited | settings | {"SAS_OPERATOR": "ann"} | environ
    output = await asyncio.to_thread(sas_said, arguments, env)
    assert "Traceback" not in output.err, output.err
    return output


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone() -> AsyncIterator[Rig]:
    """Everything but the functions: sent messages stay in their queues."""
    async with rig() as running:
        yield running
        running.nothing_lost()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(alone: Rig) -> AsyncIterator[Rig]:
    async with alone.host():
        yield alone


async def test_of_a_running_system_the_table_its_clock_and_its_queues_answer(alone: Rig) -> None:
    await alone.store.attention(1)  # creates the table
    checked = await sas(alone, "status", "--check", "--json")
    states = {check["Check"]: check["State"] for check in map(json.loads, checked.out.splitlines())}
    for name in ("reading the table", "clock of this machine", "queues", "sending to scheduler"):
        assert states[name] == "ok", checked.out
    answer = json.loads((await sas(alone, "status", "--json")).out)
    readable = {queue["Queue"] for queue in answer["Queues"] if not queue["Problem"]}
    assert {"orders", "scheduler", "dead-letters"} <= readable


async def test_a_command_that_is_not_carried_out_is_reported_as_open(alone: Rig) -> None:
    order = await alone.store.commit(cases.submitted("W-1"))
    claimed_order = await alone.store.commit(cases.claimed(order))

    waited = await sas(alone, "undo", "W-1", "--now", "--yes", "--wait", "0.5")
    assert waited.code == 1
    assert "not carried out within 0.5 s: check that the function app runs" in waited.err
    (command,) = [json.loads(body_of(message)) for message in await alone.receive("scheduler")]
    assert f"refused/{command['id']}" in waited.err
    assert command == {
        "format": 1,
        "kind": "command",
        "id": command["id"],
        "order_id": "W-1",
        "verb": "undo",
        "by": "ann",
        "seq": claimed_order.seq,
    }


async def test_a_command_overtaken_by_another_change_is_reported_as_refused(alone: Rig) -> None:
    order = await alone.store.commit(cases.submitted("T-1"))
    undoing = asyncio.create_task(sas(alone, "undo", "T-1", "--now", "--yes", "--wait", "120"))
    await until(lambda: _waits(alone), "the command is sent")
    await alone.store.commit(cases.claimed(order))
    overtaken = await undoing
    assert overtaken.code == 1
    assert (
        "you saw seq 1, but the order is at seq 2 (Processing); since then: 2 claimed by"
        in overtaken.err
    )
    await alone.receive("scheduler")


async def test_a_breaker_that_opened_is_shown_from_the_table(alone: Rig) -> None:
    breaker = opened(Breaker(), BreakerPolicy(), datetime(2026, 11, 21, tzinfo=UTC), "down")
    await keep_breaker(alone.store, breaker, "payment")
    (circuit,) = json.loads((await sas(alone, "status", "--json")).out)["Circuits"]
    assert (circuit["Agent"], circuit["State"], circuit["Why"]) == ("payment", "open", "down")
    assert circuit["Until"] == "2026-11-21T00:00:15Z"
    # The host of this module's other tests must find its services reachable.
    await keep_breaker(alone.store, Breaker(), "payment")


async def test_an_order_that_waits_for_a_deploy_is_found_in_its_queue(alone: Rig) -> None:
    since = datetime.now(UTC)
    body = order("D-1", workflow="not-deployed", workflow_version=7)
    properties: dict[str | bytes, Any] = {LEFT_SINCE: key_time(since), FIRST_AT: key_time(since)}
    message = ServiceBusMessage(body, application_properties=properties)
    async with alone.client.get_queue_sender("orders") as sender:
        numbers = await sender.schedule_messages(message, since + timedelta(minutes=9))
        answer = await sas(alone, "show", "D-1", "--json")
        assert answer.code == 0, answer.err
        record = json.loads(answer.out)
        deploy = "A deploy that has “not-deployed version 7”: no instance has it."
        assert record["Waits"]["Awaited"] == deploy
        message = record["Waits"]["Message"]
        assert message["Queue"] == "orders"
        assert datetime.fromisoformat(message["Since"]) == since
        assert datetime.fromisoformat(record["Waits"]["At"]) == since + DEPLOY_WAIT
        assert "message    scheduled in orders, " in (await sas(alone, "show", "D-1")).out
        await sender.cancel_scheduled_messages(numbers)


async def _waits(alone: Rig) -> bool:
    return alone.broker.counts("scheduler").active > 0


async def test_where_the_bus_does_not_answer_the_exit_code_says_try_again(alone: Rig) -> None:
    silent = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=k;"
    silent += "UseDevelopmentEmulator=true;"
    failed = await sas(alone, "undo", "W-1", "--yes", ServiceBus=silent)
    assert failed.code == 3
    assert "0 of 1 commands were sent before." in failed.err


async def test_the_purge_function_removes_what_is_old_and_nothing_else(alone: Rig) -> None:
    now = datetime.now(UTC)
    await alone.store.commit(cases.rejected("P-old", at=now - timedelta(days=2)))
    await alone.store.commit(cases.rejected("P-new", at=now))
    timer = {"SAS_PURGE_SCHEDULE": EVERY_SECOND, "SAS_RETENTION_DAYS": "1"}

    async def gone() -> bool:
        return await alone.store.load("P-old") is None

    async with alone.host("purge", **timer):
        await until(gone, "the old order is purged")
    assert await alone.state("P-new") == "Rejected"
    assert await alone.state("W-1") == "Processing"

    exported = await sas(alone, "list", "--to", "-")
    assert [json.loads(line)["OrderID"] for line in exported.out.splitlines()] == ["P-new"]
    assert await alone.store.purge(await alone.order("P-new"))


async def test_the_check_before_a_deploy_finds_orders_whose_version_is_missing(
    alone: Rig,
) -> None:
    checked = await sas(alone, "workflows", "check", "--app", "tests.business:workflows")
    assert checked.code == 1  # W-1 and T-1 are of a version 2 that this business does not have
    assert "order version 2: 2 orders in flight (" in checked.out
    assert "missing: keep this version until its orders have ended" in checked.out
    assert "order version 1: no order in flight; not used yet" in checked.out


async def refused_at(system: Rig, remote: str, *order_ids: str) -> None:
    """Have orders that are held for an operator fail at a remote service, then let it recover."""
    system.remote.set_faults(Faults(permanent=1.0), remote)
    for order_id in order_ids:
        await system.submit(order_id, workflow="order-with-care")
    for order_id in order_ids:
        await system.ends(order_id, "Error")
    await system.quiet()
    system.remote.set_faults(Faults())


async def test_an_order_in_error_is_listed_shown_and_resubmitted_to_its_end(system: Rig) -> None:
    await refused_at(system, "payment", "R-1")

    listed = await sas(system, "list")
    assert listed.code == 0
    assert "R-1" in listed.out
    assert "take-payment/" in listed.out
    assert "\n1 order in Error: 1 take-payment/" in listed.out

    shown = await sas(system, "show", "R-1", "--journal")
    assert shown.out.startswith("R-1 is Error. It stopped at take-payment: ")
    assert "-> alert step-failed: " in shown.out
    assert "\nsas resubmit R-1\n" in shown.out

    edited = await sas(system, "resubmit", "R-1", "--input", "{}", "--yes", "--wait", "120")
    assert edited.code == 1  # on a slow machine, stderr also has what it waits for
    assert (
        "sas: order R-1: not carried out: its input is not accepted: Object missing" in edited.err
    )

    resubmitted = await sas(system, "resubmit", "R-1", "--yes", "--wait", "120")
    assert resubmitted.code == 0, resubmitted.err
    assert "resubmit would run again: take-payment (" in resubmitted.out
    assert ", resubmitted; the order is " in resubmitted.out

    assert await system.ends("R-1", "Processed") == "Processed"
    record = json.loads((await sas(system, "show", "R-1", "--json")).out)
    assert record["ProcessState"] == "Processed"
    by = {entry["What"]: entry["By"] for entry in record["Journal"]}
    assert by["resubmitted"] == "operator ann"
    assert "Payload" not in record
    assert system.remote.ledger("payment")["doubled"] == []


async def test_a_stale_seq_is_refused_with_what_changed_and_nothing_is_sent(system: Rig) -> None:
    await refused_at(system, "payment", "S-1")
    seq = (await system.order("S-1")).seq
    assert (await sas(system, "show", "S-1", "--acknowledge", "--by", "bob")).code == 0

    stale = await sas(system, "resubmit", "S-1", "--seq", str(seq), "--yes")
    assert (stale.code, stale.out) == (1, "")
    assert f"you saw seq {seq}, but the order is at seq {seq + 1} (Error)" in stale.err
    assert f"{seq + 1} acknowledged by operator bob" in stale.err
    await system.quiet()
    assert await system.state("S-1") == "Error"
    assert "(seen by bob)" in (await sas(system, "list")).out
    assert (await sas(system, "undo", "S-1", "--yes", "--wait", "120")).code == 0
    assert await system.ends("S-1", "Compensated") == "Compensated"


class Gate:
    """``asyncio`` for the remote services: slow calls wait until the test lets them go on."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def sleep(self, _seconds: float) -> None:
        await self.go.wait()


async def test_a_running_order_is_cancelled_and_undone(
    system: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()  # however long the commands take to start, the step is still with its agent
    monkeypatch.setattr("samples.services.service.asyncio", gate)
    system.remote.set_faults(Faults(slow=1.0), "stock")
    await system.submit("C-1")
    await system.ends("C-1", "Processing")
    running = await sas(system, "list", "--state", "running")
    assert "C-1" in running.out
    assert "The agent of reserve-stock: the call is out" in (await sas(system, "show", "C-1")).out

    cancelled = await sas(system, "undo", "C-1", "--yes", "--wait", "120")
    assert cancelled.code == 0, cancelled.err
    assert "wait for reserve-stock" in cancelled.out
    system.remote.set_faults(Faults())
    gate.go.set()
    assert await system.ends("C-1", "Compensated") == "Compensated"
    await system.quiet()
    record: dict[str, Any] = json.loads((await sas(system, "show", "C-1", "--json")).out)
    assert [step["Undo"] for step in record["Steps"]] == ["undone", "not needed", "not needed"]
    effects = system.remote.ledger("stock")["effects"]
    in_force = [effect["undone_at"] is None for effect in effects if effect["order_id"] == "C-1"]
    assert in_force == [False]


async def test_finished_orders_are_listed_by_state(system: Rig) -> None:
    listed = await sas(system, "list", "--state", "compensated")
    assert "\n2 orders Compensated\n" in listed.out
    listing = await sas(system, "list", "--state", "finished", "--limit", "1", "--json")
    order_ids = [json.loads(line)["OrderID"] for line in listing.out.splitlines()]
    assert order_ids == ["C-1"]  # the newest


@pytest.mark.long
async def test_many_orders_with_one_kind_of_failure_are_skipped_together_once_confirmed(
    system: Rig,
) -> None:
    await refused_at(system, "shipping", "M-1", "M-2", "M-3")
    failed = [json.loads(line) for line in (await sas(system, "list", "--json")).out.splitlines()]
    (print_of,) = {name for record in failed for name in record["Fingerprints"]}
    chosen = ("skip", "--state", "error", "--fingerprint", print_of, "--input", '{"parcel": "P"}')

    unsure = await sas(system, *chosen)
    assert unsure.code == 2
    assert f"skip of 3 orders: 3 {print_of}" in unsure.out
    assert "there is no terminal to ask at; give --yes. Nothing was sent." in unsure.err
    assert await system.state("M-1") == "Error"

    others = await sas(system, *chosen, "--workflow", "order", "--yes")
    assert (others.code, others.out) == (0, "skip of no order\n")

    done = await sas(system, *chosen, "--yes", "--wait", "120")
    assert done.code == 0, done.err
    assert done.out.endswith("sent 3, carried out 3\n")
    for order_id in ("M-1", "M-2", "M-3"):
        order = await system.order(order_id)
        assert order.process_state.value == "Processed"
        assert order.steps[2].result == '{"parcel": "P"}'


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "nowhere"], "there is no order 'nowhere' here"),
        (["resubmit", "nowhere", "--yes"], "there is no order 'nowhere' here"),
        (["resubmit", "R-1", "--yes"], "only an order in Error can be resubmitted"),
    ],
)
async def test_what_is_not_there_or_cannot_be_is_one_sentence_and_changes_nothing(
    system: Rig, arguments: list[str], sentence: str
) -> None:
    failed = await sas(system, *arguments)
    assert (failed.code, failed.out) == (1, "")
    assert sentence in failed.err
    assert len(failed.err.splitlines()) == 1


async def test_a_table_that_is_not_there_is_named(system: Rig) -> None:
    failed = await sas(system, "list", SAS_TABLE="elsewhere")
    assert (failed.code, failed.out) == (1, "")
    assert "there is no table 'elsewhere' with orders at http" in failed.err


async def test_without_waiting_the_commands_id_is_printed_and_it_is_carried_out(
    system: Rig,
) -> None:
    await refused_at(system, "payment", "N-1")
    output = await sas(system, "undo", "N-1", "--yes", "--wait", "0")
    assert output.code == 0, output.err
    command_id = output.out.rsplit(maxsplit=1)[-1]
    assert await system.ends("N-1", "Compensated") == "Compensated"
    causes = [entry.cause for entry in await system.store.journal("N-1")]
    assert f"scheduler:{command_id}" in causes
    assert await system.alerts("N-1") != []
    assert {alert.kind for alert in await system.alerts("N-1")} == {"step-failed"}
