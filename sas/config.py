"""All settings, read once from the environment and checked.

Tests compare the names in this file with the table in ``docs/settings.md``, with
``local.settings.json`` and with the Bicep files in ``infra``.
"""

from __future__ import annotations

import base64
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from sas.adapters.endpoints import Endpoint
from sas.codec.orders import ORDER_BYTES_LIMIT, ORDER_BYTES_MAX
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.features.callbacks.codec import CallbackKeys, split_keys
from sas.ports import LIMIT_MAX

CONNECTION = "ServiceBus"
"""Setting of the Functions connection: a connection string, or for a managed identity
``ServiceBus__fullyQualifiedNamespace`` in its place.
"""

QUEUE_SETTINGS: Mapping[str, str] = {
    "orders": "SAS_QUEUE_ORDERS",
    "scheduler": "SAS_QUEUE_SCHEDULER",
    "replies": "SAS_QUEUE_AGENT_REPLIES",
    "alerts": "SAS_QUEUE_OPERATOR_ALERTS",
    "rejected": "SAS_QUEUE_ORDERS_REJECTED",
    "dead_letters": "SAS_QUEUE_DEAD_LETTERS",
    "callbacks": "SAS_QUEUE_CALLBACKS",
    "agent_prefix": "SAS_QUEUE_AGENT_PREFIX",
    "response_prefix": "SAS_QUEUE_RESPONSE_PREFIX",
}
"""The setting for each field of ``Queues``."""

KEY_BYTES = 32
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")

TELEMETRY = ("off", "console", "otlp", "azuremonitor")
"""Targets of spans, metrics and log lines: see docs/telemetry.md."""


class SettingError(ValueError):
    """A setting is missing or wrong. The message names it and says what it should be."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that differs between deployments."""

    service_bus: Endpoint
    tables: Endpoint
    table: str
    shards: int
    queues: Queues
    source: str
    instance: str
    telemetry: str
    telemetry_share: float
    order_bytes_max: int
    supervisor_lease: timedelta
    function_time: timedelta
    agent_first_delay: float
    agent_delay_max: float
    breaker_failures: int
    breaker_open: timedelta
    agent_limits: Mapping[str, int]
    retention: timedelta
    purge_export: str | None
    callback_keys: CallbackKeys
    encryption_keys: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)


def read_config(environ: Mapping[str, str] | None = None) -> Config:
    """Return the settings.

    Raises:
        SettingError: a setting is missing or wrong.
    """
    env = os.environ if environ is None else environ
    return Config(
        service_bus=_service_bus(env),
        tables=read_tables(env),
        table=read_table_name(env),
        shards=_whole(env, "SAS_SHARDS", 16, 1, 256),
        queues=read_queues(env),
        source=env.get("SAS_SOURCE", "/scheduler-agent-supervisor"),
        instance=_instance(env),
        telemetry=_telemetry(env),
        telemetry_share=_share(env, "SAS_TELEMETRY_SHARE"),
        order_bytes_max=read_order_bytes_max(env),
        supervisor_lease=timedelta(seconds=_number(env, "SAS_SUPERVISOR_LEASE_SECONDS", 60.0)),
        function_time=timedelta(seconds=_number(env, "SAS_FUNCTION_SECONDS", 540.0)),
        agent_first_delay=_number(env, "SAS_AGENT_FIRST_DELAY_SECONDS", 0.2),
        agent_delay_max=_number(env, "SAS_AGENT_DELAY_MAX_SECONDS", 10.0),
        breaker_failures=_whole(env, "SAS_BREAKER_FAILURES", 10, 0, 10_000),
        breaker_open=timedelta(seconds=_number(env, "SAS_BREAKER_OPEN_SECONDS", 15.0)),
        agent_limits=_limits(env, "SAS_AGENT_LIMITS"),
        retention=timedelta(days=_whole(env, "SAS_RETENTION_DAYS", 30, 1, 36_500)),
        purge_export=env.get("SAS_PURGE_EXPORT") or None,
        callback_keys=_callback_keys(env),
        encryption_keys=_keys(env.get("SAS_ENCRYPTION_KEYS") or ""),
    )


def read_queues(env: Mapping[str, str]) -> Queues:
    """Return the names of the queues, from their settings or by default."""
    given = {field: env[name] for field, name in QUEUE_SETTINGS.items() if env.get(name)}
    queues = Queues(**given)
    names = [getattr(queues, field) for field in QUEUE_SETTINGS if not field.endswith("_prefix")]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SettingError(f"two queues are named {twice.pop()!r}: give each its own name")
    own = next((name for name in names if name.startswith(queues.response_prefix)), None)
    if own is not None or queues.agent_prefix.startswith(queues.response_prefix):
        raise SettingError(
            f"SAS_QUEUE_RESPONSE_PREFIX={queues.response_prefix!r} is also the prefix of queues of "
            "this system, and an application could name one as its reply queue: choose another "
            "prefix"
        )
    return queues


def queue_named(name: str, queues: Queues) -> str:
    """Return a trigger's queue name with the settings in it replaced by their values.

    For a dead-letter subqueue it is the queue itself: nothing can be sent to a subqueue.
    """
    fields = {setting: field for field, setting in QUEUE_SETTINGS.items()}
    name = name.removesuffix(DEAD_LETTER_SUBQUEUE)
    return re.sub(r"%(\w+)%", lambda found: str(getattr(queues, fields[found[1]])), name)


def _service_bus(env: Mapping[str, str]) -> Endpoint:
    text = env.get(CONNECTION) or env.get(f"AzureWebJobs{CONNECTION}")
    if text:
        return Endpoint(connection_string=text)
    address = env.get(f"{CONNECTION}__fullyQualifiedNamespace")
    if address:
        return Endpoint(address=address, client_id=env.get(f"{CONNECTION}__clientId"))
    raise SettingError(
        f"the setting {CONNECTION} is missing: give a Service Bus connection string, or "
        f"{CONNECTION}__fullyQualifiedNamespace for a managed identity"
    )


def read_tables(env: Mapping[str, str]) -> Endpoint:
    """Return the endpoint of the state store.

    Raises:
        SettingError: the setting is missing.
    """
    address = env.get("SAS_TABLES__endpoint")
    if address:
        return Endpoint(address=address, client_id=env.get("SAS_TABLES__clientId"))
    text = env.get("SAS_TABLES") or env.get("AzureWebJobsStorage")
    if not text:
        raise SettingError(
            "the setting SAS_TABLES is missing: give a Storage connection string "
            "(UseDevelopmentStorage=true for Azurite), or SAS_TABLES__endpoint, for instance "
            "https://ACCOUNT.table.core.windows.net, for a managed identity"
        )
    return Endpoint(connection_string=text)


def read_table_name(env: Mapping[str, str]) -> str:
    """Return the name of the state store's table.

    Raises:
        SettingError: a table cannot have this name.
    """
    name = env.get("SAS_TABLE", "orders")
    if not (name.isascii() and name.isalnum() and name[0].isalpha() and 3 <= len(name) <= 63):
        raise SettingError(
            f"SAS_TABLE={name!r}: use 3 to 63 letters and digits, the first one a letter"
        )
    return name


def _instance(env: Mapping[str, str]) -> str:
    given = env.get("SAS_INSTANCE") or env.get("WEBSITE_INSTANCE_ID") or socket.gethostname()
    return f"{given[:40]}:{os.getpid()}"


def read_order_bytes_max(env: Mapping[str, str]) -> int:
    """Return the largest order message that is accepted, in bytes.

    Raises:
        SettingError: it is not a number, or more than can be stored.
    """
    return _whole(env, "SAS_ORDER_BYTES_MAX", ORDER_BYTES_MAX, 1024, ORDER_BYTES_LIMIT)


def _callback_keys(env: Mapping[str, str]) -> CallbackKeys:
    text, url = env.get("SAS_CALLBACK_KEY"), env.get("SAS_CALLBACK_URL") or None
    if url is not None and not url.startswith(("http://", "https://")):
        raise SettingError(
            f"SAS_CALLBACK_URL={url!r}: give the public address of the callback endpoint, for "
            "instance https://APP.azurewebsites.net/api/callbacks"
        )
    if not text:
        return CallbackKeys((), url)
    try:
        return CallbackKeys(split_keys(text), url)
    except ValueError as wrong:  # without the value, which is a secret
        raise SettingError(f"SAS_CALLBACK_KEY: {wrong}") from None


def _keys(text: str) -> tuple[tuple[str, bytes], ...]:
    """Return keys with their ids. Error texts never quote a key."""
    if text.startswith("@Microsoft.KeyVault("):
        raise SettingError(
            "SAS_ENCRYPTION_KEYS is a Key Vault reference that was not resolved: let the app's "
            "identity read that secret (role Key Vault Secrets User), and restart the app"
        )
    keys: dict[str, bytes] = {}
    for number, part in enumerate(text.split(",") if text.strip() else (), start=1):
        name, _, encoded = part.strip().partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except ValueError:
            key = b""
        if not _KEY_ID.fullmatch(name) or len(key) != KEY_BYTES:
            raise SettingError(
                f"SAS_ENCRYPTION_KEYS, key {number}: give an id of at most 32 letters, digits, - "
                f"and _, a colon, and {KEY_BYTES} random bytes in base64; commas between keys"
            )
        if name in keys or key in keys.values():
            raise SettingError(
                f"SAS_ENCRYPTION_KEYS, key {number}: its id or the key itself is given twice"
            )
        keys[name] = key
    return tuple(keys.items())


def _telemetry(env: Mapping[str, str]) -> str:
    mode = env.get("SAS_TELEMETRY") or "off"
    if mode not in TELEMETRY:
        raise SettingError(f"SAS_TELEMETRY={mode!r}: give one of {', '.join(TELEMETRY)}")
    return mode


def _share(env: Mapping[str, str], name: str) -> float:
    share = _number(env, name, 1.0)
    if share > 1:
        raise SettingError(f"{name}={share:g}: give a number above 0 and at most 1")
    return share


def _whole(env: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = env.get(name, str(default))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise SettingError(f"{name}={text!r}: give a whole number from {least:,} to {most:,}")
    return int(text)


def _limits(env: Mapping[str, str], name: str) -> Mapping[str, int]:
    """Return the limits of agents from a text such as payment:4,shipping:2."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in env.get(name, "").split(","))):
        agent, _, text = part.partition(":")
        if not agent or not text.isdecimal() or int(text) > LIMIT_MAX or agent in found:
            raise SettingError(
                f"{name}={env[name]!r}: give each agent once with the number of calls that may be "
                f"in flight, 0 to {LIMIT_MAX} (0: no limit), as in payment:4,shipping:2"
            )
        found[agent] = int(text)
    return found


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 86_400:
        raise SettingError(f"{name}={text!r}: give seconds, above 0 and less than a day")
    return value
