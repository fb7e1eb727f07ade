"""Reads the official emulator's ``Config.json``, which may hold comments and trailing commas."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devstack.inputs import DevstackError, load_object
from devstack.servicebus.core.properties import QueueProperties, check_queue_name


class ConfigError(DevstackError):
    """A configuration that cannot be used. The message says where, and what to do."""


@dataclass(frozen=True, slots=True)
class Config:
    """The queues of a configuration, and the entities that this broker does not serve."""

    queues: Mapping[str, QueueProperties] = field(default_factory=dict)
    not_served: tuple[str, ...] = ()


def read_config(path: Path) -> Config:
    """Read a Config.json. Raises ConfigError with one sentence."""
    document = load_object(path, ConfigError)
    try:
        return _config(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_config(text: str) -> Config:
    """Read the text of a Config.json. Raises ConfigError."""
    return _config(load_object(text, ConfigError))


def _config(document: Mapping[str, Any]) -> Config:
    namespaces = _required(_required(document, "UserConfig", dict), "Namespaces", list)
    if len(namespaces) != 1:
        raise ConfigError(f"UserConfig.Namespaces must hold one namespace, not {len(namespaces)}")
    namespace = _expect(namespaces[0], dict, "Namespaces[0]")
    queues: dict[str, QueueProperties] = {}
    for number, entry in enumerate(_expect(namespace.get("Queues", []), list, "Queues")):
        name, properties = _queue(_expect(entry, dict, f"Queues[{number}]"), number)
        if name.lower() in {queue.lower() for queue in queues}:
            raise ConfigError(f"queue '{name}' is configured twice; remove one")
        queues[name] = properties
    _check_targets(queues)
    topics = _expect(namespace.get("Topics", []), list, "Topics")
    names = [topic.get("Name", "?") if isinstance(topic, dict) else "?" for topic in topics]
    return Config(queues, tuple(f"topic '{name}'" for name in names))


def _queue(entry: Mapping[str, Any], number: int) -> tuple[str, QueueProperties]:
    name = entry.get("Name")
    try:
        check_queue_name(name)  # type: ignore[arg-type]  # it checks the type
    except ValueError as error:
        raise ConfigError(f"Queues[{number}].Name: {error}") from None
    properties = _expect(entry.get("Properties", {}), dict, f"queue '{name}', Properties")
    try:
        return str(name), QueueProperties.from_official(properties)
    except ValueError as error:
        raise ConfigError(f"queue '{name}': {error}") from None


def _check_targets(queues: Mapping[str, QueueProperties]) -> None:
    names = {name.lower() for name in queues}
    for name, properties in queues.items():
        for target in (properties.forward_to, properties.forward_dead_letters_to):
            if target and target.lower() not in names:
                raise ConfigError(
                    f"queue '{name}' forwards to '{target}', which is not in this file; add the "
                    "queue or leave the property empty"
                )
            if target.lower() == name.lower():
                raise ConfigError(f"queue '{name}' forwards to itself; name another queue")


def _required(parent: Any, name: str, kind: type[Any]) -> Any:
    if not isinstance(parent, dict) or name not in parent:
        raise ConfigError(f"'{name}' is missing; follow the emulator's Config.json")
    return _expect(parent[name], kind, name)


def _expect(value: Any, kind: type[Any], place: str) -> Any:
    if not isinstance(value, kind):
        kind_name = "an object" if kind is dict else "a list"
        raise ConfigError(f"{place} must be {kind_name}")
    return value
