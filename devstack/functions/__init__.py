"""An embedded host that runs a Python v2 function app unchanged.

async with Host(app_dir, settings={"ServiceBusConnection": "Endpoint=sb://..."}) as host:
    ...

python -m devstack.functions APP_DIR [--only NAME,NAME] [--processes N] [--http-port 0]
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from devstack.functions.host import Host

__all__ = ["Host"]


def __getattr__(name: str) -> Any:
    """Import the host on first use: the command must start without the SDKs to name them."""
    if name != "Host":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from devstack.functions.host import Host  # noqa: PLC0415

    return Host
