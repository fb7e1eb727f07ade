"""An embedded host that runs a Python v2 function app unchanged.

async with Host(app_dir, settings={"ServiceBusConnection": "Endpoint=sb://..."}) as host:
    ...

python -m devstack.functions APP_DIR [--only NAME,NAME] [--processes N] [--http-port 0]
"""

from typing import TYPE_CHECKING, Any

from devstack.functions.errors import (
    HostError,
    HostJsonError,
    IndexingError,
    InvocationError,
    SettingsError,
)

if TYPE_CHECKING:
    from devstack.functions.host import Host

__all__ = [
    "Host",
    "HostError",
    "HostJsonError",
    "IndexingError",
    "InvocationError",
    "SettingsError",
]


def __getattr__(name: str) -> Any:
    """Import the host when it is asked for: without the SDKs the command has to say so."""
    if name != "Host":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from devstack.functions.host import Host  # noqa: PLC0415

    return Host
