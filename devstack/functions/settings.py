"""App settings: local.settings.json and the environment, `%NAME%`, connections.

The environment beats the file, as with the Core Tools. Names are compared without case
and `__` stands for `:`, as in the host's configuration.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from devstack.errors import DevstackError
from devstack.functions.errors import SettingsError
from devstack.jsonc import load_object

FILE = "local.settings.json"
_PERCENT = re.compile(r"%([^%]+)%")
_TRUE = {"true", "1", "yes"}
_FALSE = {"false", "0", "no", ""}


@dataclass(frozen=True)
class ServiceBusConnection:
    """Where a Service Bus namespace is and how to get in: a string, or an identity."""

    setting: str
    connection_string: str | None = None
    fully_qualified_namespace: str | None = None
    client_id: str | None = None
    managed_identity: bool = False


class Settings:
    """The app's settings, merged; what a function sees in `os.environ`."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = dict(values)
        self._by_key = {_key(name): value for name, value in self.values.items()}

    @classmethod
    def load(
        cls,
        app_dir: Path,
        *,
        overrides: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "Settings":
        """Merge the file (weakest), the environment and `overrides` (strongest).

        Raises:
            SettingsError: local.settings.json is there but unusable. Its absence is fine.
        """
        values = _from_file(app_dir / FILE)
        environ = os.environ if environ is None else environ
        known = {_key(name) for name in values}
        merged = dict(environ)
        present = {_key(name) for name in environ}
        merged |= {n: v for n, v in values.items() if _key(n) in known - present}
        return cls(merged | dict(overrides or {}))

    def get(self, name: str) -> str | None:
        """The setting's value, or None; case does not count, `:` and `__` are one."""
        if name in self.values:
            return self.values[name]
        return self._by_key.get(_key(name))

    def resolve(self, text: str, *, where: str) -> str:
        """Replace every `%NAME%` by that setting's value.

        `where` names what is resolved, for the error.

        Raises:
            SettingsError: a setting does not exist.
        """

        def value(match: re.Match[str]) -> str:
            found = self.get(match.group(1))
            if found is None:
                raise SettingsError(
                    f"{where} needs the setting {match.group(1)!r}, which is defined neither in "
                    f"{FILE} nor in the environment{self._near(match.group(1))}."
                )
            return found

        return _PERCENT.sub(value, text)

    def flag(self, name: str) -> bool:
        """A true/false setting; False when it is absent.

        Raises:
            SettingsError: it is neither true nor false.
        """
        value = (self.get(name) or "").strip().lower()
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        raise SettingsError(f"The setting {name} must be true or false, not {value!r}.")

    def disabled(self, function: str) -> bool:
        """Whether `AzureWebJobs.<function>.Disabled` is on (dots may be written `__`)."""
        return any(
            self.flag(f"AzureWebJobs{mark}{function}{mark}Disabled") for mark in (".", "__", "_")
        )

    def service_bus(self, name: str, *, where: str) -> ServiceBusConnection:
        """Resolve a binding's `connection`, as the host does.

        Tried in order: `NAME`, `AzureWebJobsNAME`, then either with
        `__fullyQualifiedNamespace` for an identity.

        Raises:
            SettingsError: none is set, or the value is no Service Bus connection string.
        """
        names = (name, f"AzureWebJobs{name}", f"ConnectionStrings:{name}")
        for candidate in names:
            value = self.get(candidate)
            if value:
                return _from_string(candidate, value, where)
        for candidate in names[:2]:
            namespace = self.get(f"{candidate}__fullyQualifiedNamespace")
            if namespace:
                return ServiceBusConnection(
                    setting=candidate,
                    fully_qualified_namespace=namespace,
                    client_id=self.get(f"{candidate}__clientId"),
                    managed_identity=bool(self.get(f"{candidate}__credential")),
                )
        raise SettingsError(
            f"{where} uses the connection {name!r}: set {name} (a Service Bus connection string) "
            f"or {name}__fullyQualifiedNamespace in {FILE} or the environment{self._near(name)}."
        )

    def _near(self, name: str) -> str:
        near = get_close_matches(name, self.values, n=2, cutoff=0.75)
        return f"; did you mean {' or '.join(near)}?" if near else ""


def _key(name: str) -> str:
    return name.replace("__", ":").lower()


def _from_file(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        content = load_object(path)
    except DevstackError as error:
        raise SettingsError(str(error)) from error
    if content.get("IsEncrypted") is True:
        raise SettingsError(f"{path} is encrypted: run `func settings decrypt` first.")
    values = content.get("Values", {})
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: Values must be an object of strings.")
    for name, value in values.items():
        if not isinstance(value, str):
            raise SettingsError(
                f"{path}: the value of {name} must be a string; write it in quotes."
            )
    connections = content.get("ConnectionStrings", {})
    if isinstance(connections, dict):
        named = {f"ConnectionStrings:{n}": v for n, v in connections.items() if isinstance(v, str)}
        return named | values
    return dict(values)


def _is_connection_string(value: str) -> bool:
    pairs = (part.partition("=") for part in value.split(";") if "=" in part)
    parts = {name.strip().lower(): rest.strip() for name, _, rest in pairs}
    try:
        endpoint = urlsplit(parts.get("endpoint", ""))
        reachable = bool(endpoint.hostname) and (endpoint.port is None or endpoint.port > 0)
    except ValueError:  # a port beyond 65535, half an IPv6 address
        return False
    signed = "sharedaccesskeyname" in parts and "sharedaccesskey" in parts
    return reachable and (signed or "sharedaccesssignature" in parts)


def _from_string(setting: str, value: str, where: str) -> ServiceBusConnection:
    if not _is_connection_string(value):
        raise SettingsError(
            f"{where}: the setting {setting} is no Service Bus connection string; "
            "it must look like Endpoint=sb://...;SharedAccessKeyName=...;SharedAccessKey=...."
        )
    return ServiceBusConnection(setting=setting, connection_string=value)
