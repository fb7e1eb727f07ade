"""The properties of a queue, with the limits of the service, and ISO 8601 durations."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from typing import Any

#: The longest duration of .NET in seconds; Service Bus uses it for "no limit".
FOREVER_S = 10675199 * 86400.0 + 2 * 3600 + 48 * 60 + 5.4775807

_DURATION = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?"
    r"(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,258}[A-Za-z0-9_])?")


class EntityStatus(Enum):
    """The status of a queue: whether clients may send to it and receive from it."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"

    @property
    def sends(self) -> bool:
        """Whether messages may be sent."""
        return self is EntityStatus.ACTIVE or self is EntityStatus.RECEIVE_DISABLED

    @property
    def receives(self) -> bool:
        """Whether messages may be received."""
        return self is EntityStatus.ACTIVE or self is EntityStatus.SEND_DISABLED


def _property(official: str, default: Any, limits: tuple[float, float] | None = None) -> Any:
    """A property with its name in Config.json, and the limits of a number."""
    return field(default=default, metadata={"official": official, "limits": limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProperties:
    """The properties of a queue. Durations are seconds; ``FOREVER_S`` means no limit.

    Defaults are those of the service's Standard tier. Limits are the widest of the service, and
    durations may be as short as a test needs. Raises ValueError with a sentence for an invalid
    value.
    """

    lock_duration_s: float = _property("LockDuration", 60.0, (0.05, 300))
    max_delivery_count: int = _property("MaxDeliveryCount", 10, (1, 2000))
    requires_session: bool = _property("RequiresSession", default=False)
    requires_duplicate_detection: bool = _property("RequiresDuplicateDetection", default=False)
    duplicate_window_s: float = _property(
        "DuplicateDetectionHistoryTimeWindow", 600.0, (0.05, 604800)
    )
    default_ttl_s: float = _property("DefaultMessageTimeToLive", FOREVER_S, (0.001, FOREVER_S))
    dead_letter_on_expiration: bool = _property("DeadLetteringOnMessageExpiration", default=False)
    forward_to: str = _property("ForwardTo", "")
    forward_dead_letters_to: str = _property("ForwardDeadLetteredMessagesTo", "")
    max_message_kilobytes: int = _property("MaxMessageSizeInKilobytes", 256, (1, 102400))
    max_size_megabytes: int = _property("MaxSizeInMegabytes", 1024, (1, 81920))
    status: EntityStatus = _property("Status", EntityStatus.ACTIVE)  # noqa: RUF009 (immutable)

    def __post_init__(self) -> None:
        for attribute in fields(self):
            name, limits = attribute.name, attribute.metadata["limits"]
            value, official = getattr(self, name), _OFFICIAL[name]
            if limits is not None:
                _check_number(name, value, *limits)
            if isinstance(attribute.default, bool) and not isinstance(value, bool):
                text = f"{official} is true or false, not {value!r}"
                raise ValueError(text)  # noqa: TRY004 (one kind of error for every wrong value)
            if name.startswith("forward") and not isinstance(value, str):
                raise ValueError(f"{official} is the name of a queue or empty")
        if self.forward_to and self.requires_session:
            raise ValueError("a queue that requires sessions cannot forward; drop one of the two")

    @classmethod
    def from_official(cls, properties: Mapping[str, Any]) -> "QueueProperties":
        """Read the names that the emulator's Config.json and the management API use.

        Raises ValueError for an unknown name or an invalid value.
        """
        values: dict[str, Any] = {}
        for official, value in properties.items():
            name = _FROM_OFFICIAL.get(official.lower())
            if name is None:
                if official.lower() in _ACCEPTED_AND_IGNORED:
                    continue
                names = ", ".join(sorted(_OFFICIAL.values()))
                raise ValueError(f"{official!r} is not a property of a queue; known are {names}")
            if name in values:
                raise ValueError(f"{official} is there twice, in two spellings; remove one")
            values[name] = _read(official, name, value)
        return cls(**values)

    def to_official(self) -> dict[str, Any]:
        """Write the official names, durations as ISO 8601."""
        properties: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name.endswith("_s"):
                properties[_OFFICIAL[name]] = format_duration(value)
            else:
                properties[_OFFICIAL[name]] = value.value if isinstance(value, Enum) else value
        return properties

    def for_dead_letters(self) -> "QueueProperties":
        """Return the properties of this queue's dead-letter queue, whose messages never expire."""
        return replace(
            self,
            requires_session=False,
            requires_duplicate_detection=False,
            default_ttl_s=FOREVER_S,
            dead_letter_on_expiration=False,
            forward_to="",
            forward_dead_letters_to="",
        )


def check_queue_name(name: str) -> str:
    """Return ``name`` if the service accepts it. Raises ValueError with a sentence if not."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or "//" in name:
        raise ValueError(
            f"{name!r} cannot name a queue: use 1 to 260 letters, digits, '.', '-', '_' or '/', "
            "beginning and ending with a letter or digit"
        )
    return name


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{_OFFICIAL[name]} must be from {low:g} to {high:g}, not {value!r}")
    if not name.endswith("_s") and not isinstance(value, int):
        raise ValueError(f"{_OFFICIAL[name]} must be a whole number, not {value!r}")


def _read(official: str, name: str, value: Any) -> Any:
    try:
        if name.endswith("_s"):
            return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{official}: {error}") from None
    if name == "status":
        statuses = {status.value: status for status in EntityStatus}
        if not isinstance(value, str) or value not in statuses:
            raise ValueError(f"{official}: {value!r} is none of {', '.join(statuses)}")
        return statuses[value]
    return value


_OFFICIAL = {
    attribute.name: attribute.metadata["official"] for attribute in fields(QueueProperties)
}
_FROM_OFFICIAL = {official.lower(): name for name, official in _OFFICIAL.items()}
_ACCEPTED_AND_IGNORED = {
    "autodeleteonidle", "enablebatchedoperations", "enableexpress", "enablepartitioning",
    "isanonymousaccessible", "supportordering", "usermetadata",
}  # fmt: skip


def parse_duration(text: str) -> float:
    """Read an ISO 8601 duration of days and less; return seconds.

    Raises ValueError with a sentence for anything else (years and months have no fixed length).
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None or text.endswith(("P", "T")):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT30S, PT1M, PT1H or P1D")
    parts = {name: float(value) for name, value in match.groupdict(default="0").items()}
    minutes_s = parts["days"] * 86400 + parts["hours"] * 3600 + parts["minutes"] * 60
    return minutes_s + parts["seconds"]


def format_duration(seconds: float) -> str:
    """Write seconds as an ISO 8601 duration."""
    if seconds >= FOREVER_S:
        return "P10675199DT2H48M5.4775807S"
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    time = "".join(
        f"{value:g}{unit}"
        for value, unit in ((hours, "H"), (minutes, "M"), (round(rest, 6), "S"))
        if value
    )
    if not days and not time:
        return "PT0S"
    return "P" + (f"{days:.0f}D" if days else "") + (f"T{time}" if time else "")
