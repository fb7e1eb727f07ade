"""All settings, read once from the environment and checked.

Tests compare the names in this file with the table in ``docs/settings.md``, with
``local.settings.json`` and with the Bicep files in ``infra``.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import permutations
from pathlib import Path
from urllib.parse import urlsplit

from sas.adapters.endpoints import Endpoint
from sas.bounds import SHARDS_MAX
from sas.codec.orders import (
    MESSAGE_BYTES_DEFAULT,
    ORDER_BYTES_LIMIT,
    PUT_BACK_BYTES,
)
from sas.domain.ids import URGENT_SUFFIX
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, QUEUE_NAME, Queues
from sas.engine.delivery import DEPLOY_WAIT
from sas.engine.retry import RetryPolicy
from sas.environment import CONNECTION
from sas.features.callbacks.codec import CallbackKeys
from sas.features.circuit_breaker.rules import BreakerPolicy
from sas.ports import LIMIT_MAX, PayloadCodec

QUEUE_SETTINGS: Mapping[str, str] = {
    "orders": "SAS_QUEUE_ORDERS",
    "scheduler": "SAS_QUEUE_SCHEDULER",
    "alerts": "SAS_QUEUE_OPERATOR_ALERTS",
    "rejected": "SAS_QUEUE_ORDERS_REJECTED",
    "dead_letters": "SAS_QUEUE_DEAD_LETTERS",
    "agent_prefix": "SAS_QUEUE_AGENT_PREFIX",
    "response_prefix": "SAS_QUEUE_RESPONSE_PREFIX",
}
"""The setting for each field of ``Queues``."""

QUEUE_SETTING_LENGTH_MAX = 100
"""Longest name or prefix of a queue. An agent's name and a lane's suffix still fit behind it."""
CALLBACK_KEY_LENGTH_MIN = 32
SOURCE_LENGTH_MAX = 500
_URI_REFERENCE = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*:|(?![^/?#]*:))"  # a scheme, or no colon in the first segment
    r"(?:[A-Za-z0-9._~:/?@!$&'()*+,;=\[\]-]|%[0-9A-Fa-f]{2})+"
    r"(?:#(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)?"
)
_STORAGE = re.compile("(?:AccountName|TableEndpoint|UseDevelopmentStorage)=", re.IGNORECASE)
_APPLICATION = re.compile(r"(?=.{1,40}\Z)[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_GUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_INSTANCE = re.compile(r"[A-Za-z0-9._:-]+")
_NOT_OF_INSTANCE = re.compile(r"[^A-Za-z0-9._:-]")
_KEY_VAULT = re.compile(r"microsoft\W*(?:keyvault|appconfiguration)", re.IGNORECASE)
_REFERENCE = re.compile(r"\s*@\s*" + _KEY_VAULT.pattern + r"\s*\(", re.IGNORECASE)
_OUR_SETTINGS = ("SAS_", CONNECTION, f"AzureWebJobs{CONNECTION}", "AzureWebJobsStorage")

CUT_OFF_S = 45
"""Most seconds that a function takes to end once its time is over: its handler is cut off, and its
message is put back or held.
"""
MESSAGE_BYTES_LIMIT = 100 * 1024 * 1024
"""Highest value of SAS_MESSAGE_BYTES_MAX: the largest message of Service Bus Premium."""
TELEMETRY = ("off", "console", "otlp", "azuremonitor")
"""Targets of spans, metrics and log lines: see docs/telemetry.md."""


class SettingError(ValueError):
    """A setting is missing or wrong. The message names it and says what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    function_time: timedelta
    circuit: BreakerPolicy
    agent_limits: Mapping[str, int]
    retention: timedelta
    queue_delay: timedelta
    callback_keys: CallbackKeys
    payload_codec: PayloadCodec | None = field(default=None, repr=False)
    # These two have no setting. Tests and the simulation choose shorter times.
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    deploy_wait: timedelta = DEPLOY_WAIT


def read_config(environ: Mapping[str, str] | None = None) -> Config:
    """Return the settings.

    Raises:
        SettingError: a setting is missing or wrong.
    """
    env = os.environ if environ is None else environ
    _check_references(env)
    return Config(
        service_bus=_service_bus(env),
        tables=_tables(env),
        table=read_table_name(env),
        shards=_whole_number(env, "SAS_SHARDS", default=16, minimum=1, maximum=SHARDS_MAX),
        queues=read_queues(env),
        source=_source(env),
        instance=_instance(env),
        telemetry=_telemetry(env),
        telemetry_share=_share(env, "SAS_TELEMETRY_SHARE"),
        order_bytes_max=read_order_bytes_max(env),
        function_time=_function_time(env),
        circuit=BreakerPolicy(
            failures_max=_whole_number(
                env, "SAS_BREAKER_FAILURES", default=10, minimum=0, maximum=10_000
            )
        ),
        agent_limits=_limits(env, "SAS_AGENT_LIMITS"),
        retention=timedelta(
            days=_whole_number(env, "SAS_RETENTION_DAYS", default=30, minimum=1, maximum=36_500)
        ),
        queue_delay=timedelta(seconds=_number(env, "SAS_QUEUE_DELAY_SECONDS", 300.0)),
        callback_keys=read_callback_keys(env),
        payload_codec=read_payload_codec(env),
    )


def read_queues(env: Mapping[str, str]) -> Queues:
    """Return the names of the queues, from their settings or by default."""
    names = {field: env[name] for field, name in QUEUE_SETTINGS.items() if env.get(name)}
    for field_name, text in names.items():
        _check_queue_name(field_name, text)
    queues = Queues(**names, applications=read_applications(env))
    shared = queues.twice(())
    if shared is not None:
        raise SettingError(f"the queue {shared!r} would have two purposes: give each its own name")
    prefix, agents = queues.response_prefix.lower(), queues.agent_prefix.lower()
    is_ours = any(name.lower().startswith(prefix) for name in queues.own())
    if is_ours or agents.startswith(prefix) or prefix.startswith(agents):
        raise SettingError(
            f"SAS_QUEUE_RESPONSE_PREFIX={queues.response_prefix!r} is also the prefix of queues of "
            "this system, and an application could name one as its reply queue: choose another "
            "prefix"
        )
    return queues


def read_applications(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the applications that have a queue of orders of their own.

    Raises:
        SettingError: a name is invalid, or begins with another application's.
    """
    env = os.environ if environ is None else environ
    text = env.get("SAS_APPLICATIONS", "")
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    for name in names:
        if not _APPLICATION.fullmatch(name) or name.endswith(URGENT_SUFFIX):
            raise SettingError(
                f"SAS_APPLICATIONS={text!r}: {name!r} is not a name: use lower-case letters, "
                "digits and - between them, at most 40 characters, not -urgent at the end"
            )
    for name, other in permutations(names, 2):
        if f"{other}-".startswith(f"{name}-"):
            raise SettingError(
                f"SAS_APPLICATIONS={text!r}: order ids that begin with '{other}-' would be those "
                f"of {name!r} too: rename one"
            )
    return names


def _check_queue_name(field_name: str, text: str) -> None:
    """Refuse a name that Service Bus, or Table Storage in a key, does not take."""
    is_prefix = field_name.endswith("_prefix")
    # What follows a prefix ends with a letter or a digit, and the urgent lane is longer.
    fits = QUEUE_NAME.fullmatch(f"{text}x" if is_prefix else text)
    if fits is None or len(text) > QUEUE_SETTING_LENGTH_MAX:
        raise SettingError(
            f"{QUEUE_SETTINGS[field_name]}={text[:80]!r}: use letters, digits, . _ and -, the "
            f"first{'' if is_prefix else ' and the last'} one a letter or a digit, at most "
            f"{QUEUE_SETTING_LENGTH_MAX} characters"
        )


def queue_named(name: str, queues: Queues) -> str:
    """Return a trigger's queue name with the settings in it replaced by their values.

    For a dead-letter subqueue it is the queue itself: nothing can be sent to a subqueue.
    """
    fields = {setting: field for field, setting in QUEUE_SETTINGS.items()}
    name = name.removesuffix(DEAD_LETTER_SUBQUEUE)
    return re.sub(r"%(\w+)%", lambda match: str(getattr(queues, fields[match[1]])), name)


def _service_bus(env: Mapping[str, str]) -> Endpoint:
    text = env.get(CONNECTION) or env.get(f"AzureWebJobs{CONNECTION}")
    if text:
        if "Endpoint=sb://" not in text:  # without the text, which may hold a key
            raise SettingError(
                f"{CONNECTION} is not a Service Bus connection string, which begins with "
                f"Endpoint=sb://; for a managed identity set {CONNECTION}__fullyQualifiedNamespace"
            )
        return Endpoint(connection_string=text)
    name = f"{CONNECTION}__fullyQualifiedNamespace"
    address = env.get(name)
    if address:
        if not _HOST.fullmatch(address):
            raise SettingError(
                f"{name}={address[:80]!r}: give a host name, as NAME.servicebus.windows.net"
            )
        return Endpoint(address=address, client_id=_client_id(env, f"{CONNECTION}__clientId"))
    raise SettingError(
        f"the setting {CONNECTION} is missing: give a Service Bus connection string, or "
        f"{CONNECTION}__fullyQualifiedNamespace for a managed identity"
    )


def _tables(env: Mapping[str, str]) -> Endpoint:
    endpoint = read_tables(env)
    text = endpoint.connection_string
    if text is not None and not _STORAGE.search(text):  # without the text, which may hold a key
        raise SettingError(
            f"{'SAS_TABLES' if env.get('SAS_TABLES') else 'AzureWebJobsStorage'} is not a Storage "
            "connection string, which holds AccountName=..., or UseDevelopmentStorage=true"
        )
    return endpoint


def read_tables(env: Mapping[str, str]) -> Endpoint:
    """Return the endpoint of the state store.

    Raises:
        SettingError: the setting is missing, or the address is invalid.
    """
    address = env.get("SAS_TABLES__endpoint")
    if address:
        _check_address("SAS_TABLES__endpoint", address, "https://ACCOUNT.table.core.windows.net")
        return Endpoint(address=address, client_id=_client_id(env, "SAS_TABLES__clientId"))
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
    name = env.get("SAS_INSTANCE")
    if name and not _INSTANCE.fullmatch(name):
        raise SettingError(f"SAS_INSTANCE={name[:80]!r}: use letters, digits, . _ : and -")
    name = name or env.get("WEBSITE_INSTANCE_ID") or socket.gethostname()
    return f"{_NOT_OF_INSTANCE.sub('-', name)[:40]}:{os.getpid()}"


def _source(env: Mapping[str, str]) -> str:
    """Return the CloudEvents source, which is a URI reference."""
    text = env.get("SAS_SOURCE", "/scheduler-agent-supervisor")
    if not _URI_REFERENCE.fullmatch(text) or len(text) > SOURCE_LENGTH_MAX:
        raise SettingError(
            f"SAS_SOURCE={text[:80]!r}: give a URI reference of at most {SOURCE_LENGTH_MAX} "
            "characters, as /my-orders or https://example.com/orders, other characters as %XX"
        )
    return text


def _client_id(env: Mapping[str, str], name: str) -> str | None:
    """Return the client id of a user-assigned identity; None for the system-assigned one."""
    text = env.get(name) or None
    if text is not None and not _GUID.fullmatch(text):
        raise SettingError(
            f"{name}={text[:80]!r}: give the client id of the identity, for instance "
            "00000000-0000-0000-0000-000000000000"
        )
    return text


def _check_address(name: str, text: str, example: str) -> None:
    """Refuse a text that is not the address of an HTTP endpoint, or that no path can follow."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    plain = _URI_REFERENCE.fullmatch(text) and not {"?", "#", "@"} & set(text)
    if not (plain and host and text.startswith(("http://", "https://"))):
        raise SettingError(
            f"{name}={text[:80]!r}: give an address without query, for instance {example}"
        )


def read_order_bytes_max(env: Mapping[str, str]) -> int:
    """Return the largest order message that is accepted, in bytes.

    It is less than the largest message, because a message that is put back carries more properties.
    It is at most what the store takes.

    Raises:
        SettingError: SAS_MESSAGE_BYTES_MAX is no size that a message can have.
    """
    message_bytes_max = _whole_number(
        env,
        "SAS_MESSAGE_BYTES_MAX",
        default=MESSAGE_BYTES_DEFAULT,
        minimum=MESSAGE_BYTES_DEFAULT,
        maximum=MESSAGE_BYTES_LIMIT,
    )
    return min(message_bytes_max - PUT_BACK_BYTES, ORDER_BYTES_LIMIT)


def read_payload_codec(env: Mapping[str, str]) -> PayloadCodec | None:
    """Return the codec over the keys of SAS_PAYLOAD_KEYS; None if there are none.

    Raises:
        SettingError: a key is not a Fernet key. The text does not quote it.
    """
    text = env.get("SAS_PAYLOAD_KEYS") or ""
    if not text.strip():
        return None
    from sas.adapters.payload_codec import FernetCodec  # noqa: PLC0415  # slow to import

    try:
        return FernetCodec([key.strip() for key in text.split(",")])
    except ValueError:
        raise SettingError(
            "SAS_PAYLOAD_KEYS: give Fernet keys, 32 random bytes in URL-safe base64 each, with "
            "commas between them (docs/payload-codec.md)"
        ) from None


def read_callback_keys(env: Mapping[str, str]) -> CallbackKeys:
    """Return the keys of callbacks, and the address of their endpoint.

    Raises:
        SettingError: a key is too short, or the address is none.
    """
    text, url = env.get("SAS_CALLBACK_KEY"), env.get("SAS_CALLBACK_URL") or None
    if url is not None:
        _check_address("SAS_CALLBACK_URL", url, "https://APP.azurewebsites.net/api/callbacks")
    keys = tuple(key.strip() for key in text.split(",")) if text else ()
    for number, key in enumerate(keys, start=1):
        if len(key) < CALLBACK_KEY_LENGTH_MIN:
            raise SettingError(  # without the value, which is a secret
                f"SAS_CALLBACK_KEY, key {number}: give random text of 32 characters or more, as "
                "`openssl rand -base64 32` prints it; commas between keys"
            )
    return CallbackKeys(keys, url)


def _check_references(env: Mapping[str, str]) -> None:
    """Refuse a reference that the platform did not replace by its secret.

    Otherwise the text of the reference would be the secret, and everyone who knows the vault's name
    knows that text. Settings of the business are checked too, under any name.
    """
    for name, text in env.items():
        is_ours = name.startswith(_OUR_SETTINGS)
        if (is_ours and _KEY_VAULT.search(text)) or _REFERENCE.match(text):
            raise SettingError(
                f"{name} is a Key Vault reference that was not resolved: let the app's identity "
                "read that secret (role Key Vault Secrets User), and have Azure ask again "
                "(docs/operating.md, Keys). Messages wait in their queues"
            )


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


def _whole_number(
    env: Mapping[str, str], name: str, *, default: int, minimum: int, maximum: int
) -> int:
    text = env.get(name, str(default))
    if not _is_number(text) or not minimum <= int(text) <= maximum:
        raise SettingError(f"{name}={text!r}: give a whole number from {minimum:,} to {maximum:,}")
    return int(text)


def _is_number(text: str) -> bool:
    """Return whether ``int`` reads a text: Python itself limits the digits to 4,300."""
    return text.isdecimal() and len(text) < 20


def _limits(env: Mapping[str, str], name: str) -> Mapping[str, int]:
    """Return the limits of agents from a text such as payment:4,shipping:2."""
    limits: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in env.get(name, "").split(","))):
        agent, _, text = part.partition(":")
        if not agent or not _is_number(text) or int(text) > LIMIT_MAX or agent in limits:
            raise SettingError(
                f"{name}={env[name]!r}: give each agent once with the number of calls that may be "
                f"in flight, 0 to {LIMIT_MAX} (0: no limit), as in payment:4,shipping:2"
            )
        limits[agent] = int(text)
    return limits


def _function_time(env: Mapping[str, str]) -> timedelta:
    """Return the time after which a function puts its message back, before the host kills it."""
    seconds = _number(env, "SAS_FUNCTION_SECONDS", 540.0)
    timeout = env.get("AzureFunctionsJobHost__functionTimeout") or _function_timeout()
    match = re.fullmatch(r"(?:(\d{1,6})\.)?(\d{1,6}):(\d{1,6}):(\d{1,6})", timeout or "")
    if match is not None:
        days, hours, minutes, final_s = (int(part or 0) for part in match.groups())
        limit = ((days * 24 + hours) * 60 + minutes) * 60 + final_s
        if seconds > limit - CUT_OFF_S:
            raise SettingError(
                f"SAS_FUNCTION_SECONDS={seconds:g}: functionTimeout in host.json is {limit} s, and "
                "then the host kills the process with all its functions; raise functionTimeout to "
                f"{seconds + CUT_OFF_S:g} s"
                + (f", or set at most {limit - CUT_OFF_S}" if limit > CUT_OFF_S else "")
            )
    return timedelta(seconds=seconds)


def _function_timeout() -> str | None:
    """Return functionTimeout of ``host.json``; None if the file or the value is not there."""
    try:
        timeout = json.loads(Path("host.json").read_bytes()).get("functionTimeout")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None  # the host itself reports a wrong file
    return timeout if isinstance(timeout, str) else None


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 86_400:
        raise SettingError(f"{name}={text!r}: give seconds, above 0 and less than a day")
    return value
