"""The composition root: it wires actors, features and adapters. No other module does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from threading import Thread

from sas.actors.agent import AgentActor
from sas.actors.dead_letters import DeadLetters
from sas.actors.purge import Purger
from sas.actors.scheduler import Scheduler
from sas.actors.submission import Submitter
from sas.actors.supervisor import Supervisor
from sas.adapters import telemetry
from sas.adapters.clock import SystemClock
from sas.adapters.servicebus import ServiceBus, tls
from sas.config import Config, SettingError, read_config
from sas.domain.queues import Queues, lane
from sas.engine.context import Context
from sas.engine.external import ExternalSender
from sas.engine.held import HeldMessages
from sas.engine.hooks import CallGuard
from sas.engine.kept_orders import KeptOrders
from sas.engine.messages import Addresses
from sas.engine.outbox import Outbox
from sas.engine.receiver import Receiver
from sas.engine.rejections import Rejections
from sas.engine.run_on import Handler, RunOn
from sas.engine.transition import TransitionRunner
from sas.features.call_limit import CallLimit
from sas.features.callbacks.endpoint import Callbacks
from sas.features.circuit_breaker.guard import CircuitBreaker, OpenCircuits
from sas.features.claim_check import ClaimCheck
from sas.features.incidents.board import HealthCheck, IncidentBoard
from sas.features.long_steps.steps import ContinuedSteps
from sas.features.queue_delay.excuses import QueueExcuses
from sas.features.queue_delay.oldest import OldestOrders
from sas.features.routing import Routing
from sas.features.version_check import Versions
from sas.ports import Business, Clock, MessageBus, PayloadCodec, StateStore
from sas.telemetry.tracing import logger

log = logger(__name__)

STORE_RETRY_S = 10.0
"""Longest time of a storage request with its retries. After that the message is put back
(``sas.engine.receiver``).
"""
BROKEN_PAUSE_S = 120.0
"""How long a message is held in a process that cannot make its actors. Five deliveries take ten
minutes then, and not a second.
"""
SWEEP_TIME = timedelta(minutes=1)
"""A sweep begins nothing new after this time, because the next sweep follows within seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The actors, wired. One per process and event loop."""

    context: Context
    receiver: Receiver
    business: Business
    submitter: Submitter
    scheduler: Scheduler
    agents: Mapping[str, AgentActor]
    supervisor: Supervisor
    dead_letters: DeadLetters
    purger: Purger
    callbacks: Callbacks

    async def run(self, timer: Callable[[], Awaitable[object]]) -> None:
        """Run what a timer starts, within the time of one function."""
        await self.receiver.within_time(timer())

    async def close(self) -> None:
        """Close every connection. A failure is ignored, and the other connections are still closed.

        Failures are normal at the end of the event loop, because the SDK's tasks are cancelled too.
        """
        agents = (agent.close() for agent in self.business.agents.values())
        store, bus = self.context.store, self.context.bus
        await asyncio.gather(store.close(), bus.close(), *agents, return_exceptions=True)


def checked(business: Business) -> Business:
    """Return the business if ``bootstrap`` would accept it with the current settings.

    Telemetry starts here.

    Raises:
        SettingError: ``bootstrap`` would refuse it.
        TelemetryError: a package for SAS_TELEMETRY is missing, or its own settings are wrong.
    """
    settings = read_config()
    _check_queues(settings.queues, business)
    _limits(business, settings)
    _codec(business, settings)
    telemetry.configure(settings.telemetry, settings.instance, settings.telemetry_share)
    return business


def bootstrap(business: Business, config: Config | None = None) -> Application:
    """Return the application over Table Storage and Service Bus; connections open on first use.

    Raises:
        SettingError: a setting is missing or wrong.
        TelemetryError: a package for SAS_TELEMETRY is missing.
    """
    from sas.adapters.tables.store import TableStore  # noqa: PLC0415
    from sas.adapters.tables.table import RetryBudget  # noqa: PLC0415  # see `load_ahead`

    settings = config or read_config()
    telemetry.configure(settings.telemetry, settings.instance, settings.telemetry_share)
    budget = RetryBudget(attempts=1000, total_s=STORE_RETRY_S)  # only time limits it
    store = TableStore.connect(
        settings.tables,
        settings.table,
        settings.shards,
        retry_budget=budget,
    )
    bus = ServiceBus.connect(settings.service_bus)
    return assemble(store, bus, clock=SystemClock(), business=business, settings=settings)


def load_ahead() -> None:
    """Import in a thread what the first message needs, while the host still starts.

    The SDK of the store and aiohttp, which it needs, are a third of the time of the import.
    """

    def load() -> None:
        import_module("sas.adapters.tables.store")
        tls()

    Thread(target=load, daemon=True).start()


async def made(application: Callable[[], Application]) -> Application:
    """Return the application that a message needs; raises what ``application`` raises.

    If a bad release cannot make it, nothing can put the message back, and the host redelivers it.
    So it is held before.
    """
    try:
        return application()
    except Exception:
        log.exception("a message is held, because this process cannot make its actors")
        await asyncio.sleep(BROKEN_PAUSE_S)
        raise


_open: set[asyncio.Task[None]] = set()
"""The tasks of ``closed_with_loop``. The loop itself has only weak references to its tasks."""


def closed_with_loop(app: Application) -> Application:
    """Return the application; its connections are closed when the running event loop ends.

    When a process ends regularly, asyncio cancels the tasks that are left on the loop, and this one
    then closes the connections. In Azure, SIGTERM ends the worker at once, and its connections too.
    """

    async def close_at_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await app.close()

    task = asyncio.get_running_loop().create_task(close_at_end())
    _open.add(task)
    task.add_done_callback(_open.discard)
    return app


def assemble(
    store: StateStore,
    bus: MessageBus,
    *,
    clock: Clock,
    business: Business,
    settings: Config,
    kept_orders: KeptOrders | None = None,
) -> Application:
    """Return the application over the given ports. Deployments, tests and simulations call this.

    ``kept_orders`` replaces the usual memory of orders.

    Raises:
        SettingError: a limit names an unknown agent, a queue has two purposes, or there are two
            codecs.
    """
    _check_queues(settings.queues, business)
    business = replace(business, limits=_limits(business, settings))
    addresses = Addresses(settings.queues, settings.source)
    content = ClaimCheck(store)
    external = ExternalSender(store, bus, clock)
    circuits = OpenCircuits(store, clock)
    checks: list[HealthCheck] = [circuits.incidents]
    incidents = IncidentBoard(store, external, clock=clock, to=addresses, checks=checks)
    rejections = Rejections(bus, clock, addresses, external=external, incidents=incidents)
    oldest_orders = OldestOrders(bus, clock, settings.queues.of_orders())
    run_on = RunOn(bus=bus, clock=clock, inline=_inline(business, settings.queues))
    context = Context(
        store=store,
        bus=bus,
        clock=clock,
        to=addresses,
        instance=settings.instance,
        external=external,
        outbox=Outbox(
            store, run_on, to=addresses, external=external, rejections=rejections, content=content
        ),
        rejections=rejections,
        content=content,
        codec=_codec(business, settings),
        versions=Versions(store, business.workflows),
        incidents=incidents,
        rules=Routing(business.workflows, circuits),
        sweep_tasks=(incidents.check_health, oldest_orders.measure),
        kept_orders=kept_orders or KeptOrders(),
        run_on=run_on,
    )
    excuses = QueueExcuses(context, business.workflows, settings.queue_delay)
    checks.append(excuses.incidents)
    callbacks = Callbacks(context, business, settings.callback_keys)
    submitter = Submitter(context, business, settings.order_bytes_max, settings.deploy_wait)
    app = Application(
        context=context,
        receiver=Receiver(
            bus=bus,
            clock=clock,
            function_time=settings.function_time,
            external=external,
            report_mismatch=context.report_mismatch,
            incidents=incidents,
            run_on=run_on,
            dead_letters=settings.queues.dead_letters,
            reject=submitter.reject_too_large,
        ),
        business=business,
        submitter=submitter,
        scheduler=Scheduler(context, business, callbacks.act, settings.deploy_wait),
        agents={name: _agent(context, business, name, settings) for name in business.agents},
        supervisor=Supervisor(
            context,
            business.workflows.rules,
            excuses,
            min(SWEEP_TIME, settings.function_time),
            held_messages=HeldMessages(context, submitter.reject_too_large),
        ),
        dead_letters=DeadLetters(context, business, settings.order_bytes_max),
        purger=Purger(context, settings.retention, settings.function_time),
        callbacks=callbacks,
    )
    run_on.handlers = _own_handlers(app, business)
    return app


def _inline(business: Business, queues: Queues) -> frozenset[str]:
    """Return the queues of the agents that are called inline."""
    lanes = (False, True)
    return frozenset(
        queues.agent(name, urgent=urgent) for name in business.inline for urgent in lanes
    )


def _own_handlers(app: Application, business: Business) -> Mapping[str, Handler]:
    """Return the handlers to which this process hands messages over, by queue."""
    queues = app.context.queues
    handlers: dict[str, Handler] = {}
    for urgent in (False, True):
        handlers[lane(queues.scheduler, urgent=urgent)] = app.scheduler.handle
        for name in business.inline:
            handlers[queues.agent(name, urgent=urgent)] = app.agents[name].handle
    return handlers


def _agent(context: Context, business: Business, name: str, settings: Config) -> AgentActor:
    guards: list[CallGuard] = [CircuitBreaker(context, name, settings.circuit)]
    if business.limits.get(name, 0):
        guards.append(CallLimit(context, name, business.limits[name]))
    return AgentActor(
        context,
        name,
        business.agents[name],
        settings.retry,
        guards=guards,
        long_steps=ContinuedSteps(context, name),
        callbacks=settings.callback_keys.issuer(context.clock),
        workflows=business.workflows,
        runner=TransitionRunner(context, business.workflow_of),
    )


def _check_queues(queues: Queues, business: Business) -> None:
    shared = queues.twice(business.agents)
    if shared is not None:
        raise SettingError(
            f"the queue {shared!r} would have two purposes: rename the agent, or change the "
            "setting of the queue"
        )


def _limits(business: Business, settings: Config) -> Mapping[str, int]:
    """Return each agent's call limit. The setting overrides the business."""
    unknown = sorted(set(settings.agent_limits) - set(business.agents))
    if unknown:
        raise SettingError(
            f"SAS_AGENT_LIMITS names {unknown[0]!r}, which is not an agent. The agents are "
            f"{', '.join(sorted(business.agents))}"
        )
    return {**business.limits, **settings.agent_limits}


def _codec(business: Business, settings: Config) -> PayloadCodec | None:
    """Return the payload codec of the business, or the one that the setting makes."""
    if business.codec is not None and settings.payload_codec is not None:
        raise SettingError(
            "SAS_PAYLOAD_KEYS is set, and the business has a codec of its own: keep one of the two"
        )
    return business.codec or settings.payload_codec
