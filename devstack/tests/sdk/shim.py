"""A pytest plugin that lets the live tests of azure-servicebus run against our broker.

Those tests need Microsoft's test tools and a subscription: decorators that create a resource group,
a namespace and a queue, and a credential. The plugin puts small stand-ins for both into
``sys.modules`` before the tests are imported. The stand-ins create queues through the broker's
management port. ``SAS_SDK_BROKER`` and ``SAS_SDK_MANAGEMENT`` name its two addresses.

`python -m devstack.tests.sdk` starts the broker and pytest; nothing else uses this file.
"""

import functools
import http.client
import inspect
import itertools
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import azure.servicebus
import azure.servicebus.aio
from azure.core.credentials import AccessToken

_NUMBER = itertools.count(1)
_CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _make_queue(properties: dict[str, Any]) -> str:
    name = f"sdk-{os.getpid()}-{next(_NUMBER)}"
    inner = "".join(f"<{key}>{value}</{key}>" for key, value in sorted(properties.items()))
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<QueueDescription xmlns="{_CONNECT}">{inner}</QueueDescription></content></entry>'
    )
    host, _, port = os.environ["SAS_SDK_MANAGEMENT"].partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("PUT", f"/{name}", body)
        response = connection.getresponse()
        if response.status != 201:
            raise RuntimeError(response.read().decode())
    finally:
        connection.close()
    return name


def _wrap(test: Callable[..., Any], give: Callable[[], dict[str, Any]]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def later(*args: Any, **kwargs: Any) -> Any:
            return await test(*args, **give(), **kwargs)

        return later

    @functools.wraps(test)
    def now(*args: Any, **kwargs: Any) -> Any:
        return test(*args, **give(), **kwargs)

    return now


def _nothing(*_: Any, **__: Any) -> Decorator:
    return lambda test: test


def _namespace(*_: Any, **__: Any) -> Decorator:
    host = os.environ["SAS_SDK_BROKER"]
    arguments = {
        "servicebus_namespace": SimpleNamespace(name=host.partition(":")[0]),
        "servicebus_namespace_connection_string": os.environ["SAS_SDK_CONNECTION_STRING"],
        "servicebus_namespace_key_name": "RootManageSharedAccessKey",
        "servicebus_namespace_primary_key": "SAS_KEY_VALUE",
    }
    return lambda test: _wrap(test, lambda: arguments)


def _queue(
    name_prefix: str = "",
    *,
    requires_duplicate_detection: bool = False,
    dead_lettering_on_message_expiration: bool = False,
    requires_session: bool = False,
    lock_duration: str = "PT30S",
    parameter_name: str = "servicebus_queue",
    **_: Any,
) -> Decorator:
    properties = {
        "RequiresDuplicateDetection": str(requires_duplicate_detection).lower(),
        "DeadLetteringOnMessageExpiration": str(dead_lettering_on_message_expiration).lower(),
        "RequiresSession": str(requires_session).lower(),
        "LockDuration": lock_duration,
    }
    return lambda test: _wrap(
        test, lambda: {parameter_name: SimpleNamespace(name=_make_queue(properties))}
    )


class _Credential:
    def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken("a-token", int(time.time()) + 3600)


class _AsyncCredential:
    async def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken("a-token", int(time.time()) + 3600)

    async def close(self) -> None:
        """Nothing is open."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""


def _credential(*, is_async: bool = False, **_: Any) -> _Credential | _AsyncCredential:
    return _AsyncCredential() if is_async else _Credential()


def _plain_tcp(client: type[Any]) -> None:
    original = client.__init__

    @functools.wraps(original)
    def without_tls(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("use_tls", False)
        original(self, *args, **kwargs)

    client.__init__ = without_tls


def _module(name: str, **content: Any) -> None:
    module = ModuleType(name)
    for key, value in content.items():
        setattr(module, key, value)
    sys.modules[name] = module


def pytest_configure(config: Any) -> None:
    """Put the stand-ins in place before any test is imported."""
    for mark in ("liveTest", "live_test_only", "playback_test_only"):
        config.addinivalue_line("markers", f"{mark}: of Microsoft's tests")
    sys.path.insert(0, os.environ["SAS_SDK_TESTS"])
    _plain_tcp(azure.servicebus.ServiceBusClient)
    _plain_tcp(azure.servicebus.aio.ServiceBusClient)
    case = type(
        "AzureMgmtRecordedTestCase",
        (),
        {"await_prepared_test": staticmethod(lambda test: test)},
    )
    _module(
        "devtools_testutils",
        AzureMgmtRecordedTestCase=case,
        AzureRecordedTestCase=case,
        get_credential=_credential,
    )
    _module(
        "servicebus_preparer",
        SERVICEBUS_ENDPOINT_SUFFIX=":" + os.environ["SAS_SDK_BROKER"].partition(":")[2],
        CachedServiceBusResourceGroupPreparer=_nothing,
        ServiceBusResourceGroupPreparer=_nothing,
        ServiceBusTopicPreparer=_nothing,
        CachedServiceBusTopicPreparer=_nothing,
        ServiceBusSubscriptionPreparer=_nothing,
        CachedServiceBusSubscriptionPreparer=_nothing,
        CachedServiceBusNamespacePreparer=_namespace,
        ServiceBusNamespacePreparer=_namespace,
        ServiceBusQueuePreparer=_queue,
        CachedServiceBusQueuePreparer=_queue,
    )
