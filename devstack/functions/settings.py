"""App settings: local.settings.json and the environment, `%NAME%`, connections.

The environment overrides the file, as with the Core Tools. Names are compared without case, and
`__` is the same as `:`, as in the configuration of the Functions host. A connection to a service
that is not on this machine is refused, because a local run must not change the data of others.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from devstack.inputs import DevstackError, load_object

FILE = "local.settings.json"
BODY_LIMIT = "FUNCTIONS_REQUEST_BODY_SIZE_LIMIT"
_PERCENT = re.compile(r"%([^%]+)%")
_TRUE = {"true", "1", "yes"}
_FALSE = {"false", "0", "no", ""}
_SECRETS = {"sharedaccesskey", "sharedaccesssignature", "accountkey"}
_IDENTITY = ("fullyqualifiednamespace", "accountname", "serviceuri", "accountendpoint")
_ACCOUNT = re.compile(
    r"[a-z0-9.-]+\.(?:(?:core|servicebus|database)\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)"
    r"|documents\.azure\.(?:com|cn|us))",
    re.IGNORECASE,
)
"""The address of an account or namespace in any Azure cloud. It may be a part of a URL."""
_active: list[object] = []


class HostError(DevstackError):
    """The host cannot run this app."""


class InvocationError(HostError):
    """An invocation failed although its function raised no Exception; the sentence tells why."""


class SettingsError(HostError):
    """A setting is missing or has a wrong value."""


class Settings:
    """The app's settings, merged from all sources. A function sees them in `os.environ`."""

    def __init__(self, values: Mapping[str, str], *, allow_remote: bool = True) -> None:
        self.values = dict(values)
        self._allow_remote = allow_remote
        self._by_key = {_key(name): value for name, value in self.values.items()}

    @classmethod
    def load(
        cls,
        app_dir: Path,
        *,
        overrides: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        allow_remote: bool = False,
    ) -> "Settings":
        """Merge the file, the environment and `overrides`, or raise SettingsError.

        The environment overrides the file, and `overrides` override both. Unless `allow_remote` is
        set, no setting that the file names, and no connection of a binding, may lead to a service
        that is not on this machine.
        """
        environ = os.environ if environ is None else environ
        present = {_key(name) for name in environ}
        values = _from_file(app_dir / FILE)
        from_file = {name: value for name, value in values.items() if _key(name) not in present}
        merged = cls({**environ, **from_file, **(overrides or {})}, allow_remote=allow_remote)
        merged.check_local(values)
        return merged

    def check_local(self, names: Iterable[str]) -> None:
        """Raise SettingsError if any of these settings leads to a service on another machine."""
        hosts = {name: remote_host(name, self.get(name) or "") for name in names}
        remote = [f"{name} names {host}" for name, host in sorted(hosts.items()) if host]
        if remote and not self._allow_remote:
            raise SettingsError(
                f"The setting {' and '.join(remote)}: this is not on this machine. Set the "
                "emulator's connection string there, or say --allow-remote to use the service."
            )

    def get(self, name: str) -> str | None:
        """The value of a setting, or None."""
        return self.values.get(name, self._by_key.get(_key(name)))

    def resolve(self, text: str, *, place: str) -> str:
        """Replace every `%NAME%` by the value of that setting, or raise SettingsError.

        `place` tells in the error where `text` stands.
        """

        def value(match: re.Match[str]) -> str:
            name = match.group(1)
            setting = self.get(name)
            if setting is None:
                raise SettingsError(f"{place} needs the setting {name!r}: {self._advice(name)}")
            return setting

        return _PERCENT.sub(value, text)

    def disabled(self, function: str) -> bool:
        """Whether the setting `AzureWebJobs.<function>.Disabled` is true.

        Instead of dots its name may have `__` or `_`.
        """
        return any(
            self._flag(f"AzureWebJobs{separator}{function}{separator}Disabled")
            for separator in (".", "__", "_")
        )

    def body_bytes_max(self) -> int:
        """The bound of a request's body in bytes, or raise SettingsError."""
        value = self.get(BODY_LIMIT) or str(100 * 1024 * 1024)
        if not re.fullmatch(r"[0-9]{1,15}", value):
            raise SettingsError(f"The setting {BODY_LIMIT} must be a number of bytes: {value!r}.")
        return int(value)

    def _flag(self, name: str) -> bool:
        value = (self.get(name) or "").strip().lower()
        if value not in _TRUE | _FALSE:
            raise SettingsError(f"The setting {name} must be true or false, not {value!r}.")
        return value in _TRUE

    def service_bus(self, name: str, *, place: str) -> str:
        """Return the connection string that a binding names, or raise SettingsError.

        It is the setting `NAME` or `AzureWebJobsNAME`, as in the Functions host.
        """
        for candidate in (name, f"AzureWebJobs{name}"):
            value = self.get(candidate)
            if value and _is_connection_string(value):
                self.check_local([candidate])
                return value
            if value:
                raise SettingsError(
                    f"{place}: the setting {candidate} is not a Service Bus connection string; it "
                    "must look like Endpoint=sb://...;SharedAccessKeyName=...;SharedAccessKey=...."
                )
        raise SettingsError(
            f"{place} uses the connection {name!r}, a Service Bus connection string: "
            f"{self._advice(name)}"
        )

    def _advice(self, name: str) -> str:
        near = get_close_matches(name, self.values, n=2, cutoff=0.75)
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        return f"set it in {FILE} or the environment{hint}"

    @contextmanager
    def in_environment(self) -> Iterator[None]:
        """Put every setting into `os.environ`; restore it afterwards.

        A second host in the same process raises HostError, because both would share `os.environ`.
        """
        if _active:
            raise HostError("A host already runs in this process: stop it, or use another process.")
        environ = dict(os.environ)
        _active.append(self)
        os.environ.update(self.values)
        os.environ.setdefault("FUNCTIONS_WORKER_RUNTIME", "python")
        os.environ.setdefault("AZURE_FUNCTIONS_ENVIRONMENT", "Development")
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environ)
            _active.clear()


def _key(name: str) -> str:
    return name.replace("__", ":").lower()


def _from_file(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    content = load_object(path, SettingsError)
    if content.get("IsEncrypted") is True:
        raise SettingsError(f"{path} is encrypted: run `func settings decrypt` first.")
    values = content.get("Values", {})
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: Values must be an object of strings.")
    for name, value in values.items():
        if not isinstance(value, str):
            raise SettingsError(f"{path}: the value of {name} must be a string; use quotes.")
    return dict(values)


def _parts(value: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in value.split(";") if "=" in part)
    return {name.strip().lower(): rest.strip() for name, _, rest in pairs}


def remote_host(name: str, value: str) -> str | None:
    """Return the account or namespace of a setting if it is not on this machine, else None."""
    if "__" in name and name.lower().endswith(_IDENTITY):
        return None if not value or _is_local(value) else value
    parts = _parts(value)
    if not _SECRETS & parts.keys() or parts.get("usedevelopmentemulator", "").lower() == "true":
        account = _ACCOUNT.search(value)
        return account.group() if account else None
    addresses = [address for part, address in parts.items() if part.endswith("endpoint")]
    addresses = addresses or [f"{parts.get('accountname', 'storage')}.core.windows.net"]
    return next((address for address in addresses if not _is_local(address)), None)


def _is_local(address: str) -> bool:
    with suppress(ValueError):
        host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
        return host in {"localhost", "::1"} or host.startswith("127.")
    return False


def _is_connection_string(value: str) -> bool:
    parts = _parts(value)
    try:
        endpoint = urlsplit(parts.get("endpoint", ""))
        has_host = bool(endpoint.hostname) and (endpoint.port is None or endpoint.port > 0)
    except ValueError:  # a port above 65535, or half an IPv6 address
        return False
    has_key = "sharedaccesskeyname" in parts and "sharedaccesskey" in parts
    return has_host and (has_key or "sharedaccesssignature" in parts)
