"""Run the scenario: start all parts, send orders, kill a process, check and report."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from azure.servicebus.aio import ServiceBusClient
from rich.console import Console

from devstack.azurite import require_node
from devstack.inputs import DevstackError, make_directory
from devstack.stack import Stack
from samples.demo import display, scenario
from samples.demo.display import Screen
from samples.demo.scenario import Application
from samples.demo.tally import Tally
from samples.demo.verdict import Verdict, judge
from samples.services.contract import SERVICES
from samples.services.faults import Faults
from samples.services.ledger import LedgerView
from samples.services.remote import RemoteServices
from sas.adapters.tables.store import TableStore
from sas.client import OrdersClient
from sas.codec.external import AlertMessage
from sas.codec.strict import convert

PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command. ``keep`` is a directory for queues, table and ledgers."""

    orders: int
    faults: Faults
    logs: Path | None
    keep: Path | None
    is_default: bool


async def play(console: Console, options: Options) -> bool:
    """Run the demo; return True if nothing is unfinished, missing or doubled."""
    require_node()
    keep, orders = _new_directory(options.keep), options.orders
    display.before(console, orders)
    display.starting(console)
    async with RemoteServices(options.faults, data=keep / "services" if keep else None) as remote:
        stack = Stack(
            PROJECT,
            settings=scenario.settings(remote.urls),
            groups=scenario.GROUPS,
            logs=options.logs,
            data=keep,
        )
        async with stack:
            screen = Screen(console=console, tally=Tally(orders=orders))
            verdict, ledgers = await _orders(screen, stack, remote)
            alerts = await _alerts(stack)
    display.report(console, verdict, tally=screen.tally, ledgers=ledgers, alerts=alerts)
    display.chart(console, screen.history)
    directory = shlex.quote(str(options.keep)) if options.keep else None
    display.next_steps(console, orders, directory, is_default=options.is_default)
    display.last_line(console, verdict)
    return verdict.holds


def _new_directory(path: Path | None) -> Path | None:
    """Return the directory to keep the orders in. It must be empty: each run has the same ids."""
    if path is not None and any(make_directory(path).iterdir()):
        raise DevstackError(
            f"{path} has the orders of an earlier run: operate them with `make up DATA={path}`, "
            "remove the directory, or name another one."
        )
    return path


async def _orders(
    screen: Screen, stack: Stack, remote: RemoteServices
) -> tuple[Verdict, Mapping[str, LedgerView]]:
    """Submit, follow and show the orders until all have ended or nothing happens; then judge."""
    tally, orders = screen.tally, screen.tally.orders
    screen.begin()
    screen.event("all parts listen; the two applications start")
    applications = scenario.applications(orders)
    tasks = [
        *(
            asyncio.create_task(_application(application, stack, tally))
            for application in applications
        ),
        *(
            asyncio.create_task(_kill_host(stack, name, share * scenario.STEPS * orders, screen))
            for name, share in scenario.KILLS.items()
        ),
        asyncio.create_task(stack.watch(screen.event)),  # a host that you kill starts again
    ]
    try:
        await _show(screen, remote, tally, tasks)
        screen.end()
        display.judging(screen.console)
        return await _judge(stack, remote, orders, tally)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        screen.end()


async def _show(
    screen: Screen, remote: RemoteServices, tally: Tally, tasks: list[asyncio.Task[None]]
) -> None:
    quiet_since, seen_count = time.monotonic(), 0
    while not tally.done:
        for task in tasks:
            if task.done() and (error := task.exception()):
                raise error
        if len(tally.notification_ids) != seen_count:
            quiet_since, seen_count = time.monotonic(), len(tally.notification_ids)
        if time.monotonic() - quiet_since > scenario.QUIET_S_MAX:
            screen.event(f"no notification for {scenario.QUIET_S_MAX:.0f} s: the demo gives up")
            return
        _count_calls(screen, remote)
        screen.update()
        await asyncio.sleep(0.25)
    _count_calls(screen, remote)
    screen.update()


def _count_calls(screen: Screen, remote: RemoteServices) -> None:
    counts = [remote.counts(service) for service in SERVICES]
    screen.calls = sum(calls for calls, _ in counts)
    screen.faults = sum(faults for _, faults in counts)


async def _application(application: Application, stack: Stack, tally: Tally) -> None:
    """Send the orders of one application, a limited number at once, and follow them."""
    if not application.orders:
        return
    order_ids = {new.order_id for new in application.orders}
    share = max(1, round(scenario.IN_FLIGHT_MAX * len(order_ids) / tally.orders))
    async with OrdersClient(
        stack.servicebus_connection, reply_queue=application.reply_queue
    ) as client:
        submitting = asyncio.create_task(_submit(client, application, tally, share))
        try:
            async for notification in client.follow(None):
                tally.take(notification)
        finally:
            submitting.cancel()
            await asyncio.gather(submitting, return_exceptions=True)


async def _submit(client: OrdersClient, application: Application, tally: Tally, share: int) -> None:
    waiting = list(application.orders)
    sent_ids: set[str] = set()
    while waiting:
        room = share - len(sent_ids - tally.ended.keys())
        if room > 0:
            batch, waiting = waiting[:room], waiting[room:]
            await client.submit_many(batch)
            sent_ids.update(new.order_id for new in batch)
            tally.submitted += len(batch)
        await asyncio.sleep(0.1)


async def _kill_host(stack: Stack, name: str, calls: float, screen: Screen) -> None:
    """Kill a process in the middle of its work, after so many calls, and start a new one later."""
    while screen.calls < calls or not stack.group(name):  # noqa: ASYNC110  a demo may poll
        await asyncio.sleep(0.05)
    [pid] = stack.kill(name)
    screen.killed(f"kill -9 of process {pid} ({name}): its messages come again after 30 s")
    await asyncio.sleep(scenario.RESTART_AFTER_S)
    [started] = await stack.start_group(scenario.GROUPS[name], name=name)
    screen.event(f"process {started.pid} ({name}) replaces it")


async def _judge(
    stack: Stack, remote: RemoteServices, orders: int, tally: Tally
) -> tuple[Verdict, Mapping[str, LedgerView]]:
    """Return the verdict once nothing is on its way any more, or after a while.

    Notifications arrive out of order. While one step has failed, another may still run, or its
    message may wait until the lock of the killed process ends.
    """
    store = TableStore.connect(stack.storage_connection)
    ids = [
        new.order_id for application in scenario.applications(orders) for new in application.orders
    ]
    end = time.monotonic() + scenario.SETTLE_S_MAX
    try:
        while True:
            ledgers = {service: remote.ledger(service) for service in SERVICES}
            verdict = await judge(store, ids, tally, ledgers)
            if verdict.settled or time.monotonic() > end:
                return verdict, ledgers
            await asyncio.sleep(1.0)
    finally:
        await store.close()


async def _alerts(stack: Stack) -> list[str]:
    """Return the alerts for the operator, each with its order; the queue keeps them."""
    async with (
        ServiceBusClient.from_connection_string(stack.servicebus_connection) as client,
        client.get_queue_receiver("operator-alerts") as receiver,
    ):
        messages = await receiver.peek_messages(max_message_count=50)
    alerts = [convert(b"".join(message.body), AlertMessage) for message in messages]
    return [f"{alert.order_id}: {alert.text}" if alert.order_id else alert.text for alert in alerts]
