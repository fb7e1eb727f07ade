"""An embedded host that runs a Python v2 function app unchanged.

async with Host(app_dir, settings={"ServiceBusConnection": "Endpoint=sb://..."}) as host:
    ...

python -m devstack.functions APP_DIR [--only NAME,NAME] [--processes N] [--http-port 0]
"""

from devstack.functions.errors import (
    HostError,
    HostJsonError,
    IndexingError,
    InvocationError,
    SettingsError,
)
from devstack.functions.host import Host

__all__ = [
    "Host",
    "HostError",
    "HostJsonError",
    "IndexingError",
    "InvocationError",
    "SettingsError",
]
