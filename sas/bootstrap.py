"""The composition root: it wires actors, features and adapters. No other module does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from threading import Thread

from sas.actors.agent import AgentActor, RetryPolicy
from sas.actors.dead_letters import DeadLetters
from sas.actors.purge import Purger
from sas.actors.scheduler import Scheduler
from sas.actors.submission import Submitter
from sas.actors.supervisor import Supervisor
from sas.adapters import telemetry
from sas.adapters.clock import SystemClock
from sas.adapters.servicebus import ServiceBus, tls
from sas.bounds import SHARDS_MAX
from sas.codec.orders import ORDER_BYTES_MAX
from sas.config import Config, SettingError, read_config
from sas.domain.queues import Queues
from sas.domain.workflow import WorkflowError, Workflows
from sas.engine.context import Context
from sas.engine.delivery import DEPLOY_WAIT, Delivery
from sas.engine.hooks import CallGuard, no_callbacks
from sas.engine.messages import Addresses
from sas.engine.receiver import Handler, Receiver
from sas.features.call_limit import CallLimit
from sas.features.callbacks.codec import CallbackKeys
from sas.features.callbacks.endpoint import Callbacks
from sas.features.circuit_breaker.guard import CircuitBreaker, OpenCircuits, open_circuits
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.features.claim_check import ClaimCheck
from sas.features.incidents.board import IncidentBoard
from sas.features.long_steps.steps import ContinuedSteps
from sas.features.queue_delay.excuses import QueueExcuses
from sas.features.routing import Routing
from sas.features.version_check import Versions
from sas.ports import Business, Clock, MessageBus, PayloadCodec, StateStore

STORE_RETRY_S = 10.0
"""Longest time of a storage request with its retries. After that the message is put back
(``sas.engine.receiver``).
"""

SWEEP_TIME = timedelta(minutes=1)
"""A sweep begins nothing new after this time: another one follows in seconds."""


@dataclass(frozen=True, slots=True)
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

    async def receive(self, handler: Handler, delivery: Delivery) -> object:
        """Hand a message to its handler; see ``Receiver.receive``."""
        return await self.receiver.receive(handler, delivery)

    async def run(self, timer: Callable[[], Awaitable[object]]) -> None:
        """Run what a timer starts, within the time of one function."""
        await self.receiver.within_time(timer())

    async def close(self) -> None:
        """Close every connection. A failure is ignored, and the others are still closed.

        At the end of the event loop the SDK's own tasks are cancelled too, and its clients fail.
        """
        closing = (one.close() for one in (self.context.store, self.context.bus))
        agents = (agent.close() for agent in self.business.agents.values())
        await asyncio.gather(*closing, *agents, return_exceptions=True)


def checked(business: Business, agents: Iterable[str]) -> Business:
    """Return the business if ``bootstrap`` would accept it with the current settings.

    Each of ``agents`` has a function. Telemetry starts here.

    Raises:
        SettingError, WorkflowError: ``bootstrap`` would refuse it, or an agent has no function.
        TelemetryError: a package for SAS_TELEMETRY is missing, or its own settings are wrong.
    """
    listened = set(agents)
    lacking = sorted(business.workflows.agents() - listened)
    if lacking:
        raise WorkflowError(
            f"AGENTS does not name {lacking[0]!r}, the agent of a step: add it, or no function "
            "reads its requests"
        )
    unknown = sorted(listened - set(business.agents))
    if unknown:
        raise WorkflowError(
            f"AGENTS names {unknown[0]!r}, and business() has no such agent: it has "
            f"{', '.join(sorted(business.agents))}"
        )
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
    from sas.adapters.table import RetryBudget  # noqa: PLC0415  # see `load_ahead`
    from sas.adapters.table_store import TableStore  # noqa: PLC0415

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
    return assemble(store, bus, SystemClock(), business, settings)


def load_ahead() -> None:
    """Load in a thread what the first message needs. The host has other work before it comes.

    The SDK of the store, and with it aiohttp, are a third of the import.
    """

    def load() -> None:
        import_module("sas.adapters.table_store")
        tls()

    Thread(target=load, daemon=True).start()


_open: set[asyncio.Task[None]] = set()
"""Keeps the tasks alive: the loop itself has only weak references to them."""


def closed_with_loop(app: Application) -> Application:
    """Return the application; its connections are closed when the running event loop ends.

    When the process ends in order, the tasks that are left on the loop are cancelled. In Azure,
    SIGTERM ends the worker at once, and its connections with it.
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
    store: StateStore, bus: MessageBus, clock: Clock, business: Business, settings: Config
) -> Application:
    """Return the application over the given ports.

    Raises:
        SettingError: a limit names an unknown agent, a queue has two purposes, or there are two
            codecs.
    """
    _check_queues(settings.queues, business)
    to = Addresses(settings.queues, settings.source)
    codec = _codec(business, settings)
    context = wired(store, bus, clock, to, settings.instance, business.workflows, codec)
    return actors(
        context,
        replace(business, limits=_limits(business, settings)),
        policy=RetryPolicy(settings.agent_first_delay, settings.agent_delay_max),
        circuit=BreakerPolicy(settings.breaker_failures, settings.breaker_open),
        callback_keys=settings.callback_keys,
        order_bytes_max=settings.order_bytes_max,
        retention=settings.retention,
        purge_shards=settings.purge_shards,
        function_time=settings.function_time,
        deploy_wait=settings.deploy_wait,
    )


def wired(
    store: StateStore,
    bus: MessageBus,
    clock: Clock,
    to: Addresses,
    instance: str,
    workflows: Workflows,
    codec: PayloadCodec | None = None,
) -> Context:
    """Return the context of one instance, with every feature."""
    plain = Context.of(store, bus, clock, to, instance, ClaimCheck(store))
    routing = Routing(workflows, OpenCircuits(plain))
    checks = (lambda: open_circuits(plain),)
    incidents = IncidentBoard(store, plain.outward, clock, to, checks)
    return replace(
        plain,
        codec=codec,
        versions=Versions(store, workflows),
        incidents=incidents,
        rules=routing,
        sweep_tasks=(incidents.check_health,),
    )


def actors(  # noqa: PLR0913  one value for each setting
    context: Context,
    business: Business,
    *,
    policy: RetryPolicy,
    circuit: BreakerPolicy,
    callback_keys: CallbackKeys,
    order_bytes_max: int = ORDER_BYTES_MAX,
    retention: timedelta = timedelta(days=30),
    purge_shards: int = SHARDS_MAX,
    function_time: timedelta = timedelta(minutes=9),
    deploy_wait: timedelta = DEPLOY_WAIT,
) -> Application:
    """Return the actors of one instance. The simulation calls this too."""
    return Application(
        context=context,
        receiver=Receiver(
            context.bus, context.clock, function_time, context.outward, context.report_mismatch
        ),
        business=business,
        submitter=Submitter(context, business, order_bytes_max, deploy_wait),
        scheduler=Scheduler(context, business, deploy_wait),
        agents={
            name: _agent(context, business, name, policy, circuit, callback_keys)
            for name in business.agents
        },
        supervisor=Supervisor(
            context,
            business.workflows.rules,
            QueueExcuses(context, business.workflows),
            min(SWEEP_TIME, function_time),
        ),
        dead_letters=DeadLetters(context, business, order_bytes_max),
        purger=Purger(context, retention, function_time, purge_shards),
        callbacks=Callbacks(context, business, callback_keys),
    )


def _agent(
    context: Context,
    business: Business,
    name: str,
    policy: RetryPolicy,
    circuit: BreakerPolicy,
    callback_keys: CallbackKeys,
) -> AgentActor:
    guards: list[CallGuard] = [CircuitBreaker(context, name, circuit)]
    if business.limits.get(name, 0):
        guards.append(CallLimit(context, name, business.limits[name]))
    return AgentActor(
        context,
        name,
        business.agents[name],
        policy,
        guards=guards,
        long_steps=ContinuedSteps(context, name),
        callbacks=callback_keys.issuer(context.clock) if callback_keys else no_callbacks,
        workflows=business.workflows,
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
