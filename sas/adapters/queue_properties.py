"""The properties of queues, by the management API of Service Bus; and the clock of a service.

An operator's machine asks for them; no function does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from sas.adapters.endpoints import Endpoint
from sas.adapters.table_store import AZURITE

PROPERTIES = {
    "lockDuration": "lock_duration",
    "maxDeliveryCount": "max_delivery_count",
    "maxSizeInMegabytes": "max_size_in_megabytes",
    "requiresSession": "requires_session",
    "enableBatchedOperations": "enable_batched_operations",
    "enablePartitioning": "enable_partitioning",
    "requiresDuplicateDetection": "requires_duplicate_detection",
    "duplicateDetectionHistoryTimeWindow": "duplicate_detection_history_time_window",
    "defaultMessageTimeToLive": "default_message_time_to_live",
    "deadLetteringOnMessageExpiration": "dead_lettering_on_message_expiration",
}
"""The names of ``infra/queues.json`` (those of Bicep), and the SDK's."""
NO_RIGHT = (
    "to read the properties of queues you need the role Azure Service Bus Data Owner on the "
    "namespace (a key's policy: Manage)"
)
CLOCK_S = 10.0

Properties = Mapping[str, Any]


class UnreadablePropertiesError(Exception):
    """The properties cannot be read. The text says what is missing."""


def read_properties(
    endpoint: Endpoint, queues: Iterable[str], **options: Any
) -> dict[str, Properties | None]:
    """Return the properties of each queue, by the names of Bicep; None where there is no queue.

    It blocks: call it in a thread. ``options`` go to the SDK's client.

    Raises:
        UnreadablePropertiesError: no right, or no answer.
        ValueError: the connection string cannot be read.
    """
    settings = {"retry_total": 1} | options
    if endpoint.connection_string:
        client = ServiceBusAdministrationClient.from_connection_string(
            endpoint.connection_string, **settings
        )
    else:
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415  # slow to import

        address = endpoint.address or ""
        client = ServiceBusAdministrationClient(address, DefaultAzureCredential(), **settings)
    with closing(client):
        try:
            return {queue: _one(client, queue) for queue in queues}
        except ClientAuthenticationError:
            raise UnreadablePropertiesError(NO_RIGHT) from None
        except HttpResponseError as refused:
            text = NO_RIGHT if refused.status_code in {401, 403} else str(refused.message)
            raise UnreadablePropertiesError(text) from None
        except AzureError as silent:
            raise UnreadablePropertiesError(
                f"the management API does not answer: {silent}"
            ) from None


def _one(client: ServiceBusAdministrationClient, queue: str) -> Properties | None:
    try:
        found = client.get_queue(queue)
    except ResourceNotFoundError:
        return None
    return {name: getattr(found, own) for name, own in PROPERTIES.items()}


def tables_address(endpoint: Endpoint) -> str:
    """Return the URL of the tables that a connection string or an address names."""
    text = endpoint.connection_string
    if not text:
        return endpoint.address or ""
    text = AZURITE if "UseDevelopmentStorage=true" in text else text
    pairs = (part.partition("=") for part in text.split(";") if part)
    said = {name: value for name, _, value in pairs}
    if "TableEndpoint" in said:
        return said["TableEndpoint"]
    scheme = said.get("DefaultEndpointsProtocol", "https")
    suffix = said.get("EndpointSuffix", "core.windows.net")
    return f"{scheme}://{said.get('AccountName', '')}.table.{suffix}"


def clock_of(address: str) -> tuple[datetime, datetime]:
    """Return what a service's clock showed, and what ours did in the middle of the request.

    Any answer will do, also a refusal. It blocks: call it in a thread.

    Raises:
        OSError: no answer.
        ValueError: the answer has no date, or the address is invalid.
    """
    before = datetime.now(UTC)
    request = Request(address, method="GET")  # noqa: S310  the operator's own setting
    try:
        with urlopen(request, timeout=CLOCK_S) as answer:  # noqa: S310
            headers = answer.headers
    except HTTPError as refused:
        headers = refused.headers
    except URLError as silent:
        raise OSError(str(silent.reason)) from None
    after = datetime.now(UTC)
    date = headers.get("Date")
    if not date:
        raise ValueError("the answer has no date")
    return parsedate_to_datetime(date).astimezone(UTC), before + (after - before) / 2
