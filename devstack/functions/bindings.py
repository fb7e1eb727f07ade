"""The triggers and outputs that this host runs, read from the bindings of a function.

A binding that the host cannot run is refused by name at indexing; no binding is ignored.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from devstack.functions.schedules import Schedule, parse_timespan
from devstack.functions.settings import HostError, ServiceBusConnection, Settings

HTTP_METHODS = ("GET", "POST", "DELETE", "HEAD", "PATCH", "PUT", "OPTIONS")


class IndexingError(HostError):
    """function_app.py cannot be indexed; Azure would refuse it at deployment."""


@dataclass(frozen=True)
class ServiceBusTrigger:
    """A queue that triggers a function."""

    param: str
    connection: ServiceBusConnection
    queue: str
    batch: bool = False
    binary: bool = False
    sessions: bool = False
    auto_complete: bool | None = None


@dataclass(frozen=True)
class TimerTrigger:
    """A schedule that triggers a function: NCRONTAB, or a fixed interval."""

    param: str
    schedule: Schedule | timedelta
    text: str
    run_on_startup: bool = False
    use_monitor: bool = True


@dataclass(frozen=True)
class HttpTrigger:
    """A route that triggers a function."""

    param: str
    route: str
    methods: tuple[str, ...]
    auth_level: str


@dataclass(frozen=True)
class ServiceBusOutput:
    """A queue that receives an output or the return value of a function."""

    param: str
    connection: ServiceBusConnection
    queue: str


@dataclass(frozen=True)
class HttpOutput:
    """The answer to an HTTP request, usually `$return`."""

    param: str


Trigger = ServiceBusTrigger | TimerTrigger | HttpTrigger
Output = ServiceBusOutput | HttpOutput


def read_bindings(
    name: str, bindings: list[dict[str, Any]], settings: Settings
) -> tuple[Trigger, tuple[Output, ...]]:
    """Read the bindings of function `name`, or raise IndexingError or SettingsError."""
    are_triggers = [str(one["type"]).lower().endswith("trigger") for one in bindings]
    if sum(are_triggers) != 1:
        raise IndexingError(f"Function {name} needs exactly one trigger, not {sum(are_triggers)}.")
    outputs: list[Output] = []
    for binding, is_trigger in zip(bindings, are_triggers, strict=True):
        if is_trigger:
            trigger = _trigger(name, binding, settings)
        else:
            outputs.append(_output(name, binding, settings))
    return trigger, tuple(outputs)


def _trigger(name: str, binding: dict[str, Any], settings: Settings) -> Trigger:
    match binding["type"]:
        case "serviceBusTrigger":
            return _service_bus_trigger(name, binding, settings)
        case "timerTrigger":
            return _timer_trigger(name, binding, settings)
        case "httpTrigger":
            return _http_trigger(name, binding, settings)
    raise IndexingError(
        f"Function {name}: this host does not run {binding['type']}; it runs serviceBusTrigger "
        "(queues), timerTrigger and httpTrigger. Leave the function out with --except."
    )


def _output(name: str, binding: dict[str, Any], settings: Settings) -> Output:
    kind = binding["type"]
    if str(binding.get("direction", "OUT")) != "OUT":
        raise IndexingError(
            f"Function {name}: this host has no input bindings ({kind}); read with an SDK client, "
            "or leave the function out with --except."
        )
    if kind == "http":
        return HttpOutput(binding["name"])
    if kind == "serviceBus" and "queueName" in binding:
        where = f"The output {binding['name']} of function {name}"
        return ServiceBusOutput(binding["name"], *_queue(binding, settings, where))
    raise IndexingError(
        f"Function {name}: this host does not run the output binding {kind}"
        f"{' to a topic' if kind == 'serviceBus' else ''}; it runs serviceBus (queues) and http. "
        "Leave the function out with --except."
    )


def _queue(
    binding: dict[str, Any], settings: Settings, where: str
) -> tuple[ServiceBusConnection, str]:
    queue = settings.resolve(binding["queueName"], where=where).strip()
    if not queue:
        raise IndexingError(f"{where} names no queue: its queue_name is empty; name one.")
    return settings.service_bus(binding["connection"], where=where), queue


def _service_bus_trigger(
    name: str, binding: dict[str, Any], settings: Settings
) -> ServiceBusTrigger:
    if "queueName" not in binding:
        raise IndexingError(
            f"Function {name}: this host runs Service Bus queues, not topics; leave the function "
            "out with --except."
        )
    connection, queue = _queue(binding, settings, f"The trigger of function {name}")
    return ServiceBusTrigger(
        binding["name"],
        connection,
        queue,
        batch=str(binding.get("cardinality", "ONE")).upper() == "MANY",
        binary=str(binding.get("dataType", "")).upper() == "BINARY",
        sessions=bool(binding.get("isSessionsEnabled", False)),
        auto_complete=_optional_bool(binding.get("autoCompleteMessages")),
    )


def _timer_trigger(name: str, binding: dict[str, Any], settings: Settings) -> TimerTrigger:
    text = settings.resolve(str(binding["schedule"]), where=f"The schedule of function {name}")
    schedule: Schedule | timedelta
    try:
        schedule = parse_timespan(text) if ":" in text else Schedule.parse(text)
    except ValueError as error:
        raise IndexingError(f"Function {name}: {error}") from error
    if isinstance(schedule, timedelta) and not schedule:
        raise IndexingError(f"Function {name}: the interval {text} is too short: use more than 0.")
    return TimerTrigger(
        binding["name"],
        schedule,
        text,
        run_on_startup=bool(_optional_bool(binding.get("runOnStartup"))),
        use_monitor=_optional_bool(binding.get("useMonitor")) is not False,
    )


def _http_trigger(name: str, binding: dict[str, Any], settings: Settings) -> HttpTrigger:
    methods = tuple(str(one).upper() for one in binding.get("methods") or ())
    level = str(binding.get("authLevel", "FUNCTION")).lower()
    if level not in {"anonymous", "function", "admin"}:
        raise IndexingError(
            f"Function {name}: the authorization level {level!r} does not exist: use anonymous, "
            "function or admin."
        )
    where = f"The route of function {name}"
    route = settings.resolve(str(binding.get("route") or name), where=where)
    return HttpTrigger(binding["name"], route, methods or HTTP_METHODS, level)


def _optional_bool(value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    return str(value).lower() == "true"
