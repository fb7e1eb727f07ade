"""host.json: read, checked, and what of it this host obeys.

A key that the Functions host does not know is refused, with the nearest one that it does:
a misspelt `maxConcurrentCalls` would otherwise be ignored in silence. Each value can be
overridden by a setting `AzureFunctionsJobHost__extensions__serviceBus__...`, as in Azure.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from devstack.errors import DevstackError
from devstack.functions.errors import HostJsonError
from devstack.functions.options import HostConfig, HttpOptions, RetryOptions, ServiceBusOptions
from devstack.functions.settings import Settings
from devstack.functions.timespan import parse_timespan
from devstack.jsonc import load_object
from devstack.numbers import whole_number

FILE = "host.json"
_OVERRIDE = "azurefunctionsjobhost:"
# The host's own top-level sections; those not obeyed here concern Azure or other bindings.
_TOP = {
    "version", "aggregator", "applicationInsights", "concurrency", "console", "customHandler",
    "extensionBundle", "extensions", "functions", "functionTimeout", "healthMonitor", "http",
    "logging", "managedDependency", "queues", "retry", "singleton", "telemetryMode",
    "watchDirectories", "watchFiles", "$schema",
}  # fmt: skip
_EXTENSIONS = {
    "blobs", "cosmosDB", "durableTask", "eventGrid", "eventHubs", "http", "kafka", "mcp",
    "queues", "sendGrid", "serviceBus", "signalR", "sql", "tables", "warmup",
}  # fmt: skip


def load_host_json(app_dir: Path, settings: Settings) -> HostConfig:
    """Read and check `app_dir`/host.json.

    Raises:
        HostJsonError: it is missing, of another version, or holds a wrong key or value.
    """
    path = app_dir / FILE
    if not path.exists():
        raise HostJsonError(
            f'{path} does not exist: create it with {{"version": "2.0"}}, or name the right '
            "directory."
        )
    try:
        content = load_object(path)
    except DevstackError as error:
        raise HostJsonError(str(error)) from error
    _override(content, settings)
    return parse_host_json(content)


def parse_host_json(content: Mapping[str, Any]) -> HostConfig:
    """Check the content of a host.json; the same errors as `load_host_json`."""
    _known(content, _TOP, "host.json")
    if content.get("version") != "2.0":
        raise HostJsonError('host.json must say "version": "2.0": this host runs Functions v4.')
    extensions = _section(content, "extensions", "host.json")
    _known(extensions, _EXTENSIONS, "extensions")
    functions = content.get("functions")
    if functions is not None and not _is_strings(functions):
        raise HostJsonError("host.json: functions must be a list of function names.")
    service_bus = _service_bus(_section(extensions, "serviceBus", "extensions"))
    http = _http(_section(extensions, "http", "extensions"))
    return HostConfig(
        service_bus=service_bus,
        http=http,
        function_timeout_s=_function_timeout(content.get("functionTimeout", "00:30:00")),
        functions=tuple(functions) if functions else None,
        log_level=_log_level(_section(content, "logging", "host.json")),
        not_obeyed=tuple(sorted(_not_obeyed(extensions, service_bus, http))),
    )


def _not_obeyed(
    extensions: Mapping[str, Any], service_bus: ServiceBusOptions, http: HttpOptions
) -> set[str]:
    """What is asked for and has no meaning here: the host's log names it."""
    found = {f"extensions.{name}" for name in extensions} - {
        "extensions.serviceBus",
        "extensions.http",
    }
    if service_bus.enable_cross_entity_transactions:
        found.add("extensions.serviceBus.enableCrossEntityTransactions")
    if http.dynamic_throttles_enabled:
        found.add("extensions.http.dynamicThrottlesEnabled")
    if "hsts" in extensions.get("http", {}):
        found.add("extensions.http.hsts")
    return found


_Reader = Callable[[Any], Any]


def _whole(low: int) -> _Reader:
    def read(value: Any) -> int:
        text = str(value)
        number = whole_number(text.removeprefix("-"))
        if isinstance(value, bool) or number is None:
            raise ValueError(f"must be a whole number of at least {low}")
        number = -number if text.startswith("-") else number
        if number < low:
            raise ValueError(f"must be a whole number of at least {low}")
        return number

    return read


def _seconds(value: Any) -> float:
    if not isinstance(value, str):
        raise ValueError('must be a time such as "00:05:00"')  # noqa: TRY004  # one kind of error
    return parse_timespan(value).total_seconds()


def _some_seconds(value: Any) -> float:
    found = _seconds(value)
    if not found:
        raise ValueError("must be more than zero")
    return found


def _truth(value: Any) -> bool:
    if str(value).lower() not in {"true", "false"}:
        raise ValueError("must be true or false")
    return str(value).lower() == "true"


def _one_of(*allowed: str) -> _Reader:
    def read(value: Any) -> str:
        for one in allowed:
            if str(value).lower() == one.lower():
                return one
        raise ValueError(f"must be {' or '.join(allowed)}")

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004  # one kind of error
    return value


_RETRY: dict[str, tuple[str, _Reader]] = {
    "mode": ("mode", _one_of("exponential", "fixed")),
    "tryTimeout": ("try_timeout_s", _some_seconds),
    "delay": ("delay_s", _seconds),
    "maxDelay": ("max_delay_s", _seconds),
    "maxRetries": ("max_retries", _whole(0)),
}
_SERVICE_BUS: dict[str, tuple[str, _Reader]] = {
    "prefetchCount": ("prefetch_count", _whole(0)),
    "transportType": ("transport_type", _one_of("amqpTcp", "amqpWebSockets")),
    "autoCompleteMessages": ("auto_complete_messages", _truth),
    "maxAutoLockRenewalDuration": ("max_auto_lock_renewal_s", _seconds),
    "maxConcurrentCalls": ("max_concurrent_calls", _whole(1)),
    "maxConcurrentSessions": ("max_concurrent_sessions", _whole(1)),
    "maxMessageBatchSize": ("max_message_batch_size", _whole(1)),
    "minMessageBatchSize": ("min_message_batch_size", _whole(1)),
    "maxBatchWaitTime": ("max_batch_wait_s", _seconds),
    "sessionIdleTimeout": ("session_idle_s", _seconds),
    "enableCrossEntityTransactions": ("enable_cross_entity_transactions", _truth),
}
_HTTP: dict[str, tuple[str, _Reader]] = {
    "routePrefix": ("route_prefix", _text),
    "maxConcurrentRequests": ("max_concurrent_requests", _whole(-1)),
    "maxOutstandingRequests": ("max_outstanding_requests", _whole(-1)),
    "dynamicThrottlesEnabled": ("dynamic_throttles_enabled", _truth),
    "customHeaders": ("custom_headers", dict),
}


def _service_bus(section: Mapping[str, Any]) -> ServiceBusOptions:
    _known(section, {*_SERVICE_BUS, "clientRetryOptions"}, "extensions.serviceBus")
    retry = _section(section, "clientRetryOptions", "extensions.serviceBus")
    where = "extensions.serviceBus.clientRetryOptions"
    _known(retry, set(_RETRY), where)
    options = ServiceBusOptions(
        **_read(section, _SERVICE_BUS, "extensions.serviceBus"),
        retry=RetryOptions(**_read(retry, _RETRY, where)),
    )
    if options.min_message_batch_size > options.max_message_batch_size:
        raise HostJsonError(
            "host.json: extensions.serviceBus.minMessageBatchSize is larger than "
            "maxMessageBatchSize: make it smaller."
        )
    if options.max_batch_wait_s > timedelta(minutes=2.5).total_seconds():
        raise HostJsonError(
            "host.json: extensions.serviceBus.maxBatchWaitTime may not exceed half of the "
            "longest message lock: at most 00:02:30."
        )
    return options


def _http(section: Mapping[str, Any]) -> HttpOptions:
    _known(section, {*_HTTP, "hsts"}, "extensions.http")
    return HttpOptions(**_read(section, _HTTP, "extensions.http"))


def _read(
    section: Mapping[str, Any], readers: Mapping[str, tuple[str, _Reader]], where: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, (name, read) in readers.items():
        if key in section:
            try:
                found[name] = read(section[key])
            except (ValueError, TypeError) as error:
                reason = str(error).rstrip(".")
                raise HostJsonError(f"host.json: {where}.{key} {reason}.") from error
    return found


def _section(content: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    section = content.get(name, {})
    if not isinstance(section, dict):
        raise HostJsonError(f"{where}: {name} must be an object ({{...}}).")
    return section


def _known(section: Mapping[str, Any], allowed: set[str], where: str) -> None:
    for key in section:
        if key not in allowed:
            near = get_close_matches(key, allowed, n=1, cutoff=0.5)
            hint = (
                f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(allowed))}."
            )
            raise HostJsonError(f"host.json: {where} has no key {key!r}; {hint}")


def _function_timeout(value: Any) -> float | None:
    if value == "-1":
        return None
    try:
        return _seconds(value)
    except ValueError as error:
        raise HostJsonError(f'host.json: functionTimeout {error} (or "-1" for none).') from error


def _log_level(logging: Mapping[str, Any]) -> str:
    levels = logging.get("logLevel", {})
    default = levels.get("default", "Information") if isinstance(levels, dict) else "Information"
    allowed = ("Trace", "Debug", "Information", "Warning", "Error", "Critical", "None")
    if default not in allowed:
        raise HostJsonError(
            f"host.json: logging.logLevel.default must be one of {', '.join(allowed)}."
        )
    return str(default)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _override(content: dict[str, Any], settings: Settings) -> None:
    """Apply `AzureFunctionsJobHost__a__b=value` to the content, creating sections."""
    spelling = {
        key.lower(): key
        for key in (*_TOP, *_EXTENSIONS, *_SERVICE_BUS, *_RETRY, *_HTTP, "clientRetryOptions")
    }
    for name, value in settings.values.items():
        path = name.replace("__", ":")
        if not path.lower().startswith(_OVERRIDE):
            continue
        *sections, key = (
            spelling.get(part.lower(), part) for part in path[len(_OVERRIDE) :].split(":")
        )
        place = content
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise HostJsonError(f"The setting {name} does not fit host.json: {section} is set.")
        place[key] = value
