"""Which of an app's local settings mean "the emulator", and where that is now.

An app is written against the emulators' usual ports. A stack on free ports gives it its own
addresses instead, without the app or its settings having to know.
"""

from collections.abc import Mapping
from pathlib import Path

from devstack.jsonc import load_object

SERVICEBUS = "servicebus"
STORAGE = "storage"
_SERVICEBUS_MARK = "usedevelopmentemulator=true"
_STORAGE_MARK = "usedevelopmentstorage=true"
_STORAGE_SETTING = "AzureWebJobsStorage"
_DEFAULT_SERVICEBUS_SETTING = "ServiceBusConnection"


def local_values(app_dir: Path, connections: Mapping[str, str]) -> dict[str, str]:
    """The settings to override so that the app's emulator connections lead to `connections`.

    Every value of local.settings.json that is an emulator's connection string is replaced.
    An app that names none gets `ServiceBusConnection` and `AzureWebJobsStorage`.

    Raises:
        DevstackError: local.settings.json is no JSON.
    """
    path = app_dir / "local.settings.json"
    values = load_object(path).get("Values", {}) if path.exists() else {}
    found: dict[str, str] = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        text = str(value).replace(" ", "").lower()
        if _SERVICEBUS_MARK in text:
            found[name] = connections[SERVICEBUS]
        elif _STORAGE_MARK in text:
            found[name] = connections[STORAGE]
    if connections[SERVICEBUS] not in found.values():
        found[_DEFAULT_SERVICEBUS_SETTING] = connections[SERVICEBUS]
    found.setdefault(_STORAGE_SETTING, connections[STORAGE])
    return found
