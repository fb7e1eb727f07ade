"""The Scheduler Agent Supervisor pattern on Azure Service Bus, Table Storage and Functions.

A module of your own imports from here and from nowhere else in ``sas``: these names keep their
meaning while the first number of the version stays (docs/upgrading.md). Everything below them may
change. A name is loaded when it is first used, so ``import sas`` alone costs nothing.

- A saga: ``Saga``, ``Call``; ``OnFailure``, ``Backoff`` and ``ExtendedWait`` are options of it.
- A remote service: ``Saga.service`` returns an ``HttpService``. A function without one raises
  ``TransientError`` or ``RefusedError``.
- The function app: ``function_app``. Raise ``SettingError`` for a wrong setting of your own.
- An application: ``OrdersClient``, ``NewOrder``, ``Receipt``.
- The test kit: ``sas.testing``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from sas.distribution import lacking

if TYPE_CHECKING:
    from sas.adapters.remote import HttpService
    from sas.client import NewOrder, OrdersClient, Receipt
    from sas.config import SettingError
    from sas.domain.workflow import Backoff, ExtendedWait, OnFailure
    from sas.functions import function_app
    from sas.ports import RefusedError, TransientError
    from sas.saga import Call, Saga

__all__ = [
    "Backoff",
    "Call",
    "ExtendedWait",
    "HttpService",
    "NewOrder",
    "OnFailure",
    "OrdersClient",
    "Receipt",
    "RefusedError",
    "Saga",
    "SettingError",
    "TransientError",
    "function_app",
]
_MODULES = {
    "sas.adapters.remote": ("HttpService",),
    "sas.client": ("NewOrder", "OrdersClient", "Receipt"),
    "sas.config": ("SettingError",),
    "sas.domain.workflow": ("Backoff", "ExtendedWait", "OnFailure"),
    "sas.functions": ("function_app",),
    "sas.ports": ("RefusedError", "TransientError"),
    "sas.saga": ("Call", "Saga"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a checker would take any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'sas' has no attribute {name!r}: see help(sas)")
        try:
            member: object = getattr(import_module(_WHERE[name]), name)
        except ImportError as missing:
            raise lacking(missing, "functions") from missing
        globals()[name] = member
        return member


def __dir__() -> list[str]:
    return __all__
