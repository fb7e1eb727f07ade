"""The triggers and outputs that this host runs, read from the bindings of a function.

When the host indexes an app, it refuses a binding that it cannot run. The error names the binding.
No binding is ignored.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from devstack.functions.schedules import Schedule, parse_timespan
from devstack.functions.settings import HostError, Settings

HTTP_METHODS = ("GET", "POST", "DELETE", "HEAD", "PATCH", "PUT", "OPTIONS")
_AUTH_LEVELS = ("anonymous", "function", "admin")


class IndexingError(HostError):
    """function_app.py cannot be indexed: Azure would refuse it, or this host cannot run it."""


@dataclass(frozen=True, kw_only=True)
class ServiceBusTrigger:
    """A queue that triggers a function."""

    param: str
    connection: str
    """The connection string."""
    queue: str
    batch: bool = False
    """Whether a call gets a list of messages (cardinality many)."""
    binary: bool = False
    """Whether the function gets the body as bytes."""
    sessions: bool = False
    auto_complete: bool | None = None
    """None means the value of host.json."""


@dataclass(frozen=True, kw_only=True)
class TimerTrigger:
    """A schedule that triggers a function: NCRONTAB, or a fixed interval."""

    param: str
    schedule: Schedule | timedelta
    text: str
    """The schedule as the app writes it."""
    run_on_startup: bool = False
    use_monitor: bool = True


@dataclass(frozen=True, kw_only=True)
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
    connection: str
    """The connection string."""
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
    triggers: list[Trigger] = []
    outputs: list[Output] = []
    try:
        for binding in bindings:
            if str(binding["type"]).lower().endswith("trigger"):
                triggers.append(_trigger(name, binding, settings))
            else:
                outputs.append(_output(name, binding, settings))
    except ValueError as error:
        raise IndexingError(f"Function {name}: {error}") from error
    if len(triggers) != 1:
        raise IndexingError(f"Function {name} needs exactly one trigger, not {len(triggers)}.")
    return triggers[0], tuple(outputs)


def _trigger(name: str, binding: dict[str, Any], settings: Settings) -> Trigger:
    match binding["type"]:
        case "serviceBusTrigger":
            connection, queue = _queue(binding, settings, f"The trigger of function {name}")
            return ServiceBusTrigger(
                param=binding["name"],
                connection=connection,
                queue=queue,
                batch=str(binding.get("cardinality", "ONE")).upper() == "MANY",
                binary=str(binding.get("dataType", "")).upper() == "BINARY",
                sessions=bool(binding.get("isSessionsEnabled", False)),
                auto_complete=_optional_bool(binding.get("autoCompleteMessages")),
            )
        case "timerTrigger":
            place = f"The schedule of function {name}"
            text = settings.resolve(str(binding["schedule"]), place=place)
            return TimerTrigger(
                param=binding["name"],
                schedule=_schedule(text),
                text=text,
                run_on_startup=bool(_optional_bool(binding.get("runOnStartup"))),
                use_monitor=_optional_bool(binding.get("useMonitor")) is not False,
            )
        case "httpTrigger":
            place = f"The route of function {name}"
            route = settings.resolve(str(binding.get("route") or name), place=place)
            methods = tuple(str(method).upper() for method in binding.get("methods") or ())
            level = str(binding.get("authLevel", "FUNCTION")).lower()
            if level not in _AUTH_LEVELS:
                raise ValueError(f"authorization level {level!r}: use {' or '.join(_AUTH_LEVELS)}.")
            return HttpTrigger(
                param=binding["name"],
                route=route,
                methods=methods or HTTP_METHODS,
                auth_level=level,
            )
    raise _unsupported(binding["type"])


def _output(name: str, binding: dict[str, Any], settings: Settings) -> Output:
    kind = binding["type"]
    if str(binding.get("direction", "OUT")) != "OUT":
        raise _unsupported(f"input bindings such as {kind}")
    if kind == "http":
        return HttpOutput(binding["name"])
    if kind == "serviceBus":
        place = f"The output {binding['name']} of function {name}"
        return ServiceBusOutput(binding["name"], *_queue(binding, settings, place))
    raise _unsupported(f"the output binding {kind}")


def _unsupported(feature: str) -> ValueError:
    return ValueError(
        f"this host does not run {feature}; it runs Service Bus queues, timers and HTTP. Leave the "
        "function out with --except."
    )


def _queue(binding: dict[str, Any], settings: Settings, place: str) -> tuple[str, str]:
    """Return the connection string and the name of a queue."""
    if "queueName" not in binding:
        raise _unsupported("topics")
    queue = settings.resolve(binding["queueName"], place=place).strip()
    if not queue:
        raise IndexingError(f"{place} names no queue: its queue_name is empty; name one.")
    return settings.service_bus(binding["connection"], place=place), queue


def _schedule(text: str) -> Schedule | timedelta:
    if ":" not in text:
        return Schedule.parse(text)
    interval = parse_timespan(text)
    if not interval:
        raise ValueError(f"the interval {text} is too short: use more than 0.")
    return interval


def _optional_bool(value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    return str(value).lower() == "true"
