"""The operator's command, as it is typed, against a running system: broker, host, Azurite.

What each verb does in each state is the matter of the unit tests. Here every verb is played once.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from devstack.tests.sdk_kit import SHORT_PAUSES
from samples.remote_services import Faults
from tests.functions_rig import Rig, rig
from tests.integration.sas_command import Gate, sas

pytestmark = [pytest.mark.asyncio(loop_scope="module"), SHORT_PAUSES]
LONG_WAIT = ("--yes", "--wait", "120", "--json")


async def answers(system: Rig, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """Return the records that a command prints as JSON."""
    output = await sas(system, *arguments)
    assert output.code == code, output
    return [json.loads(line) for line in output.out.splitlines()]


async def answer(system: Rig, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Return the only record."""
    (record,) = await answers(system, *arguments, code=code)
    return record


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
    checks = await answers(alone, "status", "--check", "--json")
    states = {check["Check"]: check["State"] for check in checks}
    for name in ("reading the table", "clock of this machine", "queues", "sending to scheduler"):
        assert states[name] == "ok", checks
    queues = (await answer(alone, "status", "--json"))["Queues"]
    readable = {queue["Queue"] for queue in queues if not queue["Problem"]}
    assert {"orders", "scheduler", "dead-letters"} <= readable


async def refused_at(system: Rig, remote: str, *order_ids: str) -> None:
    """Have orders that are held for an operator fail at a remote service, then let it recover."""
    system.remote.set_faults(Faults(permanent=1.0), remote)
    for order_id in order_ids:
        await system.submit(order_id, workflow="order-with-care")
    for order_id in order_ids:
        await system.ends(order_id, "Error")
    await system.quiet()
    system.remote.set_faults(Faults())


async def test_orders_in_error_are_listed_shown_and_repaired_to_their_end(
    system: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await refused_at(system, "payment", "R-1")
    await refused_at(system, "shipping", "M-1", "M-2")
    failed = {each["OrderID"]: each for each in await answers(system, "list", "--json")}
    assert failed.keys() == {"R-1", "M-1", "M-2"}
    shown = await answer(system, "show", "R-1", "--json")
    assert {act["Verb"] for act in shown["Acts"]} == {"resubmit", "skip", "undo", "acknowledge"}
    alerts = await answers(system, "messages", "list", "alerts", "--json")
    assert {alert["OrderID"] for alert in alerts} == {"R-1", "M-1", "M-2"}

    edited = await answer(system, "resubmit", "R-1", "--input", "{}", *LONG_WAIT, code=1)
    assert (edited["CarriedOut"], edited["Refusal"]) == (False, "refused")
    assert "its input is not accepted: Object missing" in edited["Problem"]
    resubmitted = await answer(system, "resubmit", "R-1", *LONG_WAIT)
    assert (resubmitted["Effect"], resubmitted["CarriedOut"]) == ("run-again", True)
    assert await system.ends("R-1", "Processed") == "Processed"
    journal = (await answer(system, "show", "R-1", "--json"))["Journal"]
    assert {row["What"]: row["By"] for row in journal}["resubmitted"] == "operator ann"
    assert system.remote.ledger("payment")["doubled"] == []

    (name,) = failed["M-1"]["Fingerprints"]
    skip = ("skip", "--state", "error", "--fingerprint", name, "--input", '{"parcel": "P"}')
    assert {each["CarriedOut"] for each in await answers(system, *skip, *LONG_WAIT)} == {True}
    for order_id in ("M-1", "M-2"):
        order = await system.order(order_id)
        assert (order.process_state.value, order.steps[2].result) == (
            "Processed",
            '{"parcel": "P"}',
        )

    gate = Gate()  # however long the commands take to start, the step is still with its agent
    monkeypatch.setattr("samples.services.service.asyncio", gate)
    system.remote.set_faults(Faults(slow=1.0), "stock")
    await system.submit("C-1")
    await system.ends("C-1", "Processing")
    running = await answers(system, "list", "--state", "running", "--json")
    assert "C-1" in {each["OrderID"] for each in running}
    cancelled = await answer(system, "undo", "C-1", *LONG_WAIT)
    assert (cancelled["Effect"], cancelled["CarriedOut"]) == ("cancel", True)
    system.remote.set_faults(Faults())
    gate.go.set()
    assert await system.ends("C-1", "Compensated") == "Compensated"
    await system.quiet()
    effects = system.remote.ledger("stock")["effects"]
    in_force = [effect["undone_at"] is None for effect in effects if effect["order_id"] == "C-1"]
    assert in_force == [False]
    finished = await answer(system, "list", "--state", "finished", "--limit", "1", "--json")
    assert finished["OrderID"] == "C-1"  # the newest
    exported = await answers(system, "list", "--to", "-")
    assert {each["OrderID"] for each in exported} == {"R-1", "M-1", "M-2", "C-1"}
    check = ("workflows", "check", "--app", "tests.business:workflows", "--json")
    versions = await answers(system, *check)
    assert {each["Breaks"] for each in versions} == {None}


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
    assert (await sas(system, "undo", "S-1", "--yes", "--wait", "120")).code == 0
    assert await system.ends("S-1", "Compensated") == "Compensated"


async def test_a_table_that_is_not_there_is_named(system: Rig) -> None:
    failed = await sas(system, "list", SAS_TABLE="elsewhere")
    assert (failed.code, failed.out) == (1, "")
    assert "there is no table 'elsewhere' with orders at http" in failed.err
