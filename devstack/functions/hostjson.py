"""Read and check host.json. Its options have the defaults of the Azure extensions.

Azure would silently ignore a misspelt `maxConcurrentCalls`. So this module refuses a key that the
Functions host does not know, and the error names the nearest known key. It checks the keys at the
top, of `extensions`, and of the sections for Service Bus and HTTP. A setting
`AzureFunctionsJobHost__extensions__serviceBus__...` overrides a value, as in Azure.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from devstack.functions.schedules import parse_timespan
from devstack.functions.settings import HostError, Settings
from devstack.inputs import load_object

FILE = "host.json"
_OVERRIDE = "azurefunctionsjobhost:"
_BATCH_WAIT_S_MAX = 150.0  # half of the longest message lock
# The level of Python for each level of host.json. "None" is above every level of Python.
LOG_LEVELS = {
    "Trace": logging.DEBUG,
    "Debug": logging.DEBUG,
    "Information": logging.INFO,
    "Warning": logging.WARNING,
    "Error": logging.ERROR,
    "Critical": logging.CRITICAL,
    "None": logging.CRITICAL + 1,
}
# All top-level sections of the Functions host; some concern only Azure or other bindings.
_APPLIED = {"$schema", "version", "extensions", "functions", "functionTimeout", "logging"}
_TOP = _APPLIED | {
    "aggregator", "applicationInsights", "concurrency", "console", "customHandler",
    "extensionBundle", "healthMonitor", "http", "managedDependency", "queues", "retry",
    "singleton", "telemetryMode", "watchDirectories", "watchFiles",
}  # fmt: skip
_EXTENSIONS = {
    "blobs", "cosmosDB", "durableTask", "eventGrid", "eventHubs", "http", "kafka", "mcp",
    "queues", "sendGrid", "serviceBus", "signalR", "sql", "tables", "warmup",
}  # fmt: skip

_HTTP = {"customHeaders", "dynamicThrottlesEnabled", "hsts"}  # keys that this host ignores

_Reader = Callable[[Any], Any]
T = TypeVar("T")


class HostJsonError(HostError):
    """host.json contains something that the Functions host would refuse or ignore."""


def _whole_number(minimum: int) -> _Reader:
    def read(value: Any) -> int:
        if not re.fullmatch(r"-?[0-9]{1,15}", str(value)) or int(value) < minimum:
            raise ValueError(f"must be a whole number of at least {minimum}")
        return int(value)

    return read


def _bound(value: Any) -> int:
    if str(value) == "-1":
        return sys.maxsize
    return int(_whole_number(1)(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004  # one kind of error
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, str):
        raise ValueError('must be a time such as "00:05:00"')  # noqa: TRY004  # one kind of error
    return parse_timespan(value).total_seconds()


def _positive_seconds(value: Any) -> float:
    seconds = _seconds(value)
    if not seconds:
        raise ValueError("must be more than zero")
    return seconds


def _boolean(value: Any) -> bool:
    return bool(_one_of("true", "false")(value) == "true")


def _one_of(*allowed: str) -> _Reader:
    def read(value: Any) -> str:
        for choice in allowed:
            if str(value).lower() == choice.lower():
                return choice
        raise ValueError(f"must be {' or '.join(allowed)}")

    return read


def _key(read: _Reader, default: Any) -> Any:
    """A field that host.json sets. Its name gives the key: `max_delay_s` has the key `maxDelay`."""
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True, kw_only=True)
class RetryOptions:
    """`clientRetryOptions`: how the Service Bus client retries."""

    mode: str = _key(_one_of("exponential", "fixed"), "exponential")
    try_timeout_s: float = _key(_positive_seconds, 60.0)
    delay_s: float = _key(_seconds, 0.8)
    max_delay_s: float = _key(_seconds, 60.0)
    max_retries: int = _key(_whole_number(0), 3)


@dataclass(frozen=True, kw_only=True)
class ServiceBusOptions:
    """`extensions.serviceBus` of the 5.x extension, with its defaults."""

    prefetch_count: int = _key(_whole_number(0), 0)
    transport_type: str = _key(_one_of("amqpTcp", "amqpWebSockets"), "amqpTcp")
    auto_complete_messages: bool = _key(_boolean, default=True)
    max_auto_lock_renewal_duration_s: float = _key(_seconds, 300.0)
    max_concurrent_calls: int = _key(_whole_number(1), 16 * (os.cpu_count() or 1))
    max_concurrent_sessions: int = _key(_whole_number(1), 8)
    max_message_batch_size: int = _key(_whole_number(1), 1000)
    min_message_batch_size: int = _key(_whole_number(1), 1)
    max_batch_wait_time_s: float = _key(_seconds, 30.0)
    session_idle_timeout_s: float = _key(_seconds, 60.0)
    enable_cross_entity_transactions: bool = _key(_boolean, default=False)
    retry: RetryOptions = field(default_factory=RetryOptions)


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """`extensions.http`, with the defaults of Flex Consumption: nothing is bounded."""

    route_prefix: str = _key(_text, "api")
    max_concurrent_requests: int = _key(_bound, sys.maxsize)
    max_outstanding_requests: int = _key(_bound, sys.maxsize)


@dataclass(frozen=True, kw_only=True)
class HostConfig:
    """The options of host.json that this host applies."""

    service_bus: ServiceBusOptions = field(default_factory=ServiceBusOptions)
    http: HttpOptions = field(default_factory=HttpOptions)
    function_timeout_s: float | None = 1800.0
    functions: tuple[str, ...] | None = None
    log_level: str = "Information"
    not_applied: tuple[str, ...] = ()
    """Keys of the file that this host ignores."""


def load_host_json(app_dir: Path, settings: Settings) -> HostConfig:
    """Read and check `app_dir`/host.json, or raise HostJsonError."""
    path = app_dir / FILE
    if not path.exists():
        raise HostJsonError(f'{path} does not exist: create it with {{"version": "2.0"}}.')
    content = load_object(path, HostJsonError)
    _override(content, settings)
    return parse_host_json(content)


def parse_host_json(content: Mapping[str, Any]) -> HostConfig:
    """Check the content of a host.json, or raise HostJsonError."""
    _check_keys(content, _TOP, "host.json")
    if content.get("version") != "2.0":
        raise HostJsonError('host.json must say "version": "2.0": this host runs Functions v4.')
    extensions = _section(content, "extensions", "host.json")
    _check_keys(extensions, _EXTENSIONS, "extensions")
    functions = content.get("functions")
    if functions is not None and not (
        isinstance(functions, list) and all(isinstance(name, str) for name in functions)
    ):
        raise HostJsonError("host.json: functions must be a list of function names.")
    service_bus = _service_bus(_section(extensions, "serviceBus", "extensions"))
    http = _section(extensions, "http", "extensions")
    return HostConfig(
        service_bus=service_bus,
        http=_read(HttpOptions, http, "extensions.http", *_HTTP),
        function_timeout_s=_function_timeout(content.get("functionTimeout", "00:30:00")),
        functions=tuple(functions) if functions else None,
        log_level=_log_level(_section(content, "logging", "host.json")),
        not_applied=tuple(sorted(_not_applied(content, service_bus))),
    )


def _service_bus(section: Mapping[str, Any]) -> ServiceBusOptions:
    place = "extensions.serviceBus"
    retry_section = _section(section, "clientRetryOptions", place)
    retry = _read(RetryOptions, retry_section, f"{place}.clientRetryOptions")
    options = _read(ServiceBusOptions, section, place, "clientRetryOptions", retry=retry)
    if options.min_message_batch_size > options.max_message_batch_size:
        raise HostJsonError(
            f"host.json: {place}.minMessageBatchSize exceeds maxMessageBatchSize: make it smaller."
        )
    if options.max_batch_wait_time_s > _BATCH_WAIT_S_MAX:
        raise HostJsonError(f"host.json: {place}.maxBatchWaitTime may be at most 00:02:30.")
    return options


def _not_applied(content: Mapping[str, Any], bus: ServiceBusOptions) -> set[str]:
    extensions, logs = content.get("extensions", {}), content.get("logging", {})
    levels, http = logs.get("logLevel", {}), extensions.get("http", {})
    requested = {
        "extensions.serviceBus.enableCrossEntityTransactions": bus.enable_cross_entity_transactions,
        "extensions.serviceBus.transportType": bus.transport_type != "amqpTcp",
    }
    return {
        *(content.keys() - _APPLIED),
        *(f"extensions.{name}" for name in extensions.keys() - {"serviceBus", "http"}),
        *(f"extensions.http.{name}" for name in http.keys() & _HTTP),
        *(f"logging.{name}" for name in logs.keys() - {"logLevel"}),
        *(f"logging.logLevel.{name}" for name in levels.keys() - {"default"}),
        *(name for name, is_set in requested.items() if is_set),
    }


def _keys(options: type[Any]) -> dict[str, Field[Any]]:
    """The fields of an options class, by their keys in host.json."""
    fields_by_key = {}
    for option in fields(options):
        if option.metadata:
            first, *rest = option.name.removesuffix("_s").split("_")
            fields_by_key[first + "".join(word.capitalize() for word in rest)] = option
    return fields_by_key


def _read(
    options: type[T], section: Mapping[str, Any], place: str, *nested_keys: str, **nested: Any
) -> T:
    """Read the options of a section; `nested` are the options of its sections `nested_keys`.

    A key of `nested_keys` that `nested` does not give is allowed, and ignored.
    """
    keys = _keys(options)
    _check_keys(section, {*keys, *nested_keys}, place)
    values: dict[str, Any] = {}
    for key in section.keys() & keys.keys():
        try:
            values[keys[key].name] = keys[key].metadata["read"](section[key])
        except (ValueError, TypeError) as error:
            reason = str(error).rstrip(".")
            raise HostJsonError(f"host.json: {place}.{key} {reason}.") from error
    return options(**values, **nested)


def _section(content: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    section = content.get(name, {})
    if not isinstance(section, dict):
        raise HostJsonError(f"{place}: {name} must be an object ({{...}}).")
    return section


def _check_keys(section: Mapping[str, Any], allowed: set[str], place: str) -> None:
    for key in (key for key in section if key not in allowed):
        near = get_close_matches(key, allowed, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(allowed))}."
        raise HostJsonError(f"host.json: {place} has no key {key!r}; {hint}")


def _function_timeout(value: Any) -> float | None:
    if value == "-1":
        return None
    try:
        return _seconds(value)
    except ValueError as error:
        raise HostJsonError(f'host.json: functionTimeout {error} (or "-1" for none).') from error


def _log_level(section: Mapping[str, Any]) -> str:
    default = _section(section, "logLevel", "logging").get("default", "Information")
    if not isinstance(default, str) or default not in LOG_LEVELS:
        raise HostJsonError(
            f"host.json: logging.logLevel.default must be one of {', '.join(LOG_LEVELS)}."
        )
    return str(default)


def _override(content: dict[str, Any], settings: Settings) -> None:
    """Apply the settings `AzureFunctionsJobHost__a__b=value`; create missing sections."""
    keys = {**_keys(ServiceBusOptions), **_keys(RetryOptions), **_keys(HttpOptions)}
    spelling = {
        key.lower(): key for key in (*_TOP, *_EXTENSIONS, *_HTTP, *keys, "clientRetryOptions")
    }
    for name, value in settings.values.items():
        path = name.replace("__", ":")
        if not path.lower().startswith(_OVERRIDE):
            continue
        *sections, key = (
            spelling.get(part.lower(), part) for part in path[len(_OVERRIDE) :].split(":")
        )
        parent = content
        for section in sections:
            parent = parent.setdefault(section, {})
            if not isinstance(parent, dict):
                raise HostJsonError(f"The setting {name} does not fit host.json: {section} is set.")
        parent[key] = value
