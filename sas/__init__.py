"""The Scheduler Agent Supervisor pattern on Azure Service Bus, Table Storage and Functions.

A module of your own imports from here and from nowhere else in ``sas``: these names keep their
meaning while the first number of the version stays (docs/upgrading.md). Everything below them may
change. A name is loaded when it is first used, so ``import sas`` alone costs nothing.

- A workflow: ``Workflow``, ``Workflows``, ``Step``, ``Undo``, ``OnFailure``, ``Backoff``,
  ``ExtendedWait``.
- An agent: ``Agent``, ``Blocking``, ``Call``; it returns ``StillRunning``, ``AwaitCallback`` or
  data, and raises ``TransientError`` or ``RefusedError``. ``HttpService`` calls a service.
- The business: ``Business``, ``convert``, ``SettingError``.
- The function app: ``function_app``.
- An application: ``OrdersClient``, ``NewOrder``, ``Receipt``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from sas.distribution import lacking

if TYPE_CHECKING:
    from sas.adapters.remote import HttpService
    from sas.client import NewOrder, OrdersClient, Receipt
    from sas.codec.strict import convert
    from sas.config import SettingError
    from sas.domain.workflow import (
        Backoff,
        ExtendedWait,
        OnFailure,
        Step,
        Undo,
        Workflow,
        Workflows,
    )
    from sas.functions import function_app
    from sas.ports import (
        Agent,
        AwaitCallback,
        Blocking,
        Business,
        Call,
        RefusedError,
        StillRunning,
        TransientError,
    )

__all__ = [
    "Agent",
    "AwaitCallback",
    "Backoff",
    "Blocking",
    "Business",
    "Call",
    "ExtendedWait",
    "HttpService",
    "NewOrder",
    "OnFailure",
    "OrdersClient",
    "Receipt",
    "RefusedError",
    "SettingError",
    "Step",
    "StillRunning",
    "TransientError",
    "Undo",
    "Workflow",
    "Workflows",
    "convert",
    "function_app",
]
_MODULES = {
    "sas.adapters.remote": ("HttpService",),
    "sas.client": ("NewOrder", "OrdersClient", "Receipt"),
    "sas.codec.strict": ("convert",),
    "sas.config": ("SettingError",),
    "sas.functions": ("function_app",),
    "sas.domain.workflow": (
        *("Backoff", "ExtendedWait", "OnFailure", "Step", "Undo", "Workflow", "Workflows"),
    ),
}
_PORTS = "sas.ports"
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a checker would take any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'sas' has no attribute {name!r}: see help(sas)")
        try:
            member: object = getattr(import_module(_WHERE.get(name, _PORTS)), name)
        except ImportError as missing:
            raise lacking(missing, "functions") from missing
        globals()[name] = member
        return member


def __dir__() -> list[str]:
    return __all__
