"""The composition root: the only module that names actors and adapters together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sas.actors.agent import AgentActor, RetryPolicy
from sas.actors.dead_letters import DeadLetters
from sas.actors.purge import Purger
from sas.actors.scheduler import Scheduler
from sas.actors.submission import Submitter
from sas.actors.supervisor import Supervisor
from sas.adapters import telemetry
from sas.adapters.clock import SystemClock
from sas.adapters.export import JsonLines
from sas.adapters.servicebus import ServiceBus
from sas.adapters.table import RetryBudget
from sas.config import Config, SettingError, read_config
from sas.domain.queues import Queues
from sas.domain.workflow import WorkflowError
from sas.engine.context import Context
from sas.engine.messages import Addresses
from sas.features.callbacks.endpoint import Callbacks
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.features.field_encryption.encryption import FieldEncryption
from sas.features.version_check import VersionedStore, Versions
from sas.ports import Business, KeyRing

STORE_RETRY_BUDGET = RetryBudget(attempts=1000, total_s=30.0)
"""Time alone bounds it. A message given back comes again at once: were it given back as soon as
the store is away, its few deliveries would be used up in seconds, and an order be rejected."""


@dataclass(frozen=True, slots=True)
class Application:
    """The actors, wired. One per process and event loop."""

    context: Context
    business: Business
    submitter: Submitter
    scheduler: Scheduler
    agents: Mapping[str, AgentActor]
    supervisor: Supervisor
    dead_letters: DeadLetters
    purger: Purger
    callbacks: Callbacks

    async def close(self) -> None:
        """Let go of every connection."""
        await self.context.store.close()
        await self.context.bus.close()
        for agent in self.business.agents.values():
            await agent.close()


def checked(business: Business, agents: Iterable[str]) -> Business:
    """Return the business once it is certain that ``bootstrap`` will take it, with the settings as
    they are; ``agents`` are those that have a function each. Telemetry begins here.

    Raises:
        SettingError, WorkflowError: what ``bootstrap`` would refuse, or an agent without function.
        TelemetryError: a package for SAS_TELEMETRY is missing, or its own settings are wrong.
    """
    listened = set(agents)
    lacking = sorted(business.workflows.agents() - listened)
    if lacking:
        raise WorkflowError(
            f"AGENTS does not name {lacking[0]!r}, which a step asks for: nobody would take its "
            "requests; add it"
        )
    unknown = sorted(listened - set(business.agents))
    if unknown:
        raise WorkflowError(
            f"AGENTS names {unknown[0]!r}, and business() gives no such agent: it gives "
            f"{', '.join(sorted(business.agents))}"
        )
    settings = read_config()
    _check_queues(settings.queues, business)
    _limits(business, settings)
    _privacy(business, settings)
    telemetry.configure(settings.telemetry, settings.instance, settings.telemetry_share)
    return business


def bootstrap(business: Business, config: Config | None = None) -> Application:
    """Return the application over Table Storage and Service Bus; connections open on first use.

    Raises:
        SettingError: a setting is missing or wrong.
        WorkflowError: secret_fields names what cannot be.
        TelemetryError: a package for SAS_TELEMETRY is missing.
    """
    settings = config or read_config()
    telemetry.configure(settings.telemetry, settings.instance, settings.telemetry_share)
    store = VersionedStore.connect(
        settings.tables, settings.table, settings.shards, retry_budget=STORE_RETRY_BUDGET
    )
    store.versions = Versions(business.workflows)
    bus = ServiceBus.connect(settings.service_bus)
    to = Addresses(settings.queues, settings.source)
    context = Context.of(store, bus, SystemClock(), to, settings.instance, settings.callback_keys)
    return assemble(context, business, settings)


def assemble(context: Context, business: Business, settings: Config) -> Application:
    """Return the actors over given ports: what a simulation calls.

    Raises:
        WorkflowError, SettingError: a key is missing; secret_fields or a limit names what is not
            there; two purposes share a queue.
    """
    _check_queues(context.queues, business)
    limits = _limits(business, settings)
    context = replace(context, privacy=_privacy(business, settings))
    policy = RetryPolicy(settings.agent_first_delay, settings.agent_delay_max)
    breaker = BreakerPolicy(settings.breaker_failures, settings.breaker_open)
    return Application(
        context=context,
        business=business,
        submitter=Submitter(context, business, settings.order_bytes_max),
        scheduler=Scheduler(context, business),
        agents={
            name: AgentActor(context, name, agent, policy, breaker, limits.get(name, 0))
            for name, agent in business.agents.items()
        },
        supervisor=Supervisor(context, business.workflows.rules, settings.supervisor_lease),
        dead_letters=DeadLetters(context, business, settings.order_bytes_max),
        purger=Purger(context, settings.retention, _exporter(settings)),
        callbacks=Callbacks(context, business),
    )


def _check_queues(queues: Queues, business: Business) -> None:
    shared = queues.twice(business.agents)
    if shared is not None:
        raise SettingError(
            f"the queue {shared!r} would have two purposes: name the agent, or the queue by its "
            "setting, otherwise"
        )


def _limits(business: Business, settings: Config) -> Mapping[str, int]:
    """Return each agent's limit: the business's own, or what the setting says instead."""
    unknown = sorted(set(settings.agent_limits) - set(business.agents))
    if unknown:
        raise SettingError(
            f"SAS_AGENT_LIMITS names {unknown[0]!r}, and there is no such agent: there is "
            f"{', '.join(sorted(business.agents))}"
        )
    return {**business.limits, **settings.agent_limits}


def _privacy(business: Business, settings: Config) -> FieldEncryption:
    ring: KeyRing | None = None
    if settings.encryption_keys:
        from sas.adapters.keyring import AesKeyRing  # noqa: PLC0415  # slow to import

        ring = AesKeyRing(settings.encryption_keys)
    if business.secret_fields and ring is None:
        raise SettingError(
            f"workflow {next(iter(business.secret_fields))!r} has secret fields, and the setting "
            "SAS_ENCRYPTION_KEYS is missing: give an id, a colon, and 32 random bytes in base64"
        )
    return FieldEncryption.of(business, ring)


def _exporter(settings: Config) -> JsonLines | None:
    directory = settings.purge_export
    return JsonLines(Path(directory), settings.instance) if directory else None
