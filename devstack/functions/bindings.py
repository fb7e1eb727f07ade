"""Triggers and outputs as this host runs them, read from a function's own description.

Whatever it cannot run is refused by name here, at indexing; nothing is ignored.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from devstack.functions.errors import IndexingError
from devstack.functions.ncrontab import Schedule
from devstack.functions.settings import ServiceBusConnection, Settings
from devstack.functions.timespan import parse_timespan

HTTP_METHODS = ("GET", "POST", "DELETE", "HEAD", "PATCH", "PUT", "OPTIONS")


@dataclass(frozen=True)
class ServiceBusTrigger:
    """A queue that calls a function."""

    param: str
    connection: ServiceBusConnection
    queue: str
    batch: bool = False
    binary: bool = False
    sessions: bool = False
    auto_complete: bool | None = None


@dataclass(frozen=True)
class TimerTrigger:
    """A schedule that calls a function: NCRONTAB, or a fixed interval."""

    param: str
    schedule: Schedule | timedelta
    text: str
    run_on_startup: bool = False
    use_monitor: bool = True


@dataclass(frozen=True)
class HttpTrigger:
    """A route that calls a function."""

    param: str
    route: str
    methods: tuple[str, ...]
    auth_level: str


@dataclass(frozen=True)
class ServiceBusOutput:
    """A queue that a function's output or return value goes to."""

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
) -> tuple[Trigger, list[Output]]:
    """Read the bindings of function `name`, its settings resolved.

    Raises:
        IndexingError: a kind that this host does not run, or a wrong value.
        SettingsError: a `%NAME%` or a connection that is not defined.
    """
    triggers: list[Trigger] = []
    outputs: list[Output] = []
    for binding in bindings:
        kind = str(binding["type"])
        if kind.lower().endswith("trigger"):
            triggers.append(_trigger(name, kind, binding, settings))
        else:
            outputs.append(_output(name, kind, binding, settings))
    if len(triggers) != 1:
        raise IndexingError(f"Function {name} needs exactly one trigger, not {len(triggers)}.")
    return triggers[0], outputs


def _trigger(name: str, kind: str, binding: dict[str, Any], settings: Settings) -> Trigger:
    if kind == "serviceBusTrigger":
        return _service_bus_trigger(name, binding, settings)
    if kind == "timerTrigger":
        return _timer_trigger(name, binding, settings)
    if kind == "httpTrigger":
        return _http_trigger(name, binding, settings)
    raise IndexingError(
        f"Function {name}: this host does not run {kind}; it runs serviceBusTrigger (queues), "
        "timerTrigger and httpTrigger. Leave the function out with --except."
    )


def _output(name: str, kind: str, binding: dict[str, Any], settings: Settings) -> Output:
    if str(binding.get("direction", "OUT")) != "OUT":
        raise IndexingError(
            f"Function {name}: this host has no input bindings ({kind}); read with an SDK client, "
            "or leave the function out with --except."
        )
    if kind == "http":
        return HttpOutput(binding["name"])
    if kind == "serviceBus" and "queueName" in binding:
        where = f"The output {binding['name']} of function {name}"
        return ServiceBusOutput(
            binding["name"],
            settings.service_bus(binding["connection"], where=where),
            _queue(binding, settings, where),
        )
    raise IndexingError(
        f"Function {name}: this host does not run the output binding {kind}"
        f"{' to a topic' if kind == 'serviceBus' else ''}; it runs serviceBus (queues) and http. "
        "Leave the function out with --except."
    )


def _service_bus_trigger(
    name: str, binding: dict[str, Any], settings: Settings
) -> ServiceBusTrigger:
    if "queueName" not in binding:
        raise IndexingError(
            f"Function {name}: this host runs Service Bus queues, not topics; leave the function "
            "out with --except."
        )
    where = f"The trigger of function {name}"
    return ServiceBusTrigger(
        param=binding["name"],
        connection=settings.service_bus(binding["connection"], where=where),
        queue=_queue(binding, settings, where),
        batch=str(binding.get("cardinality", "ONE")).upper() == "MANY",
        binary=str(binding.get("dataType", "")).upper() == "BINARY",
        sessions=bool(binding.get("isSessionsEnabled", False)),
        auto_complete=_optional_bool(binding.get("autoCompleteMessages")),
    )


def _queue(binding: dict[str, Any], settings: Settings, where: str) -> str:
    queue = settings.resolve(binding["queueName"], where=where).strip()
    if not queue:
        raise IndexingError(f"{where} names no queue: its queue_name is empty; name one.")
    return queue


def _timer_trigger(name: str, binding: dict[str, Any], settings: Settings) -> TimerTrigger:
    text = settings.resolve(str(binding["schedule"]), where=f"The schedule of function {name}")
    schedule: Schedule | timedelta
    try:
        schedule = parse_timespan(text) if ":" in text else Schedule.parse(text)
    except ValueError as error:
        raise IndexingError(f"Function {name}: {error}") from error
    if isinstance(schedule, timedelta) and not schedule:
        raise IndexingError(f"Function {name}: an interval of {text} would never rest.")
    return TimerTrigger(
        param=binding["name"],
        schedule=schedule,
        text=text,
        run_on_startup=bool(_optional_bool(binding.get("runOnStartup"))),
        use_monitor=_optional_bool(binding.get("useMonitor")) is not False,
    )


def _http_trigger(name: str, binding: dict[str, Any], settings: Settings) -> HttpTrigger:
    methods = tuple(str(one).upper() for one in binding.get("methods") or ())
    level = str(binding.get("authLevel", "FUNCTION")).lower()
    if level not in {"anonymous", "function", "admin"}:
        raise IndexingError(f"Function {name}: {level!r} is no authorization level of Azure's.")
    route = settings.resolve(
        str(binding.get("route") or name), where=f"The route of function {name}"
    )
    return HttpTrigger(binding["name"], route, methods or HTTP_METHODS, level)


def _optional_bool(value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    return str(value).lower() == "true"
