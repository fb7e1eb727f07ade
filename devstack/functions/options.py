"""What host.json can say that this host obeys, with the extension's own defaults."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RetryOptions:
    """`clientRetryOptions`: how the Service Bus client retries; times in seconds."""

    mode: str = "exponential"
    try_timeout_s: float = 60.0
    delay_s: float = 0.8
    max_delay_s: float = 60.0
    max_retries: int = 3


@dataclass(frozen=True)
class ServiceBusOptions:
    """`extensions.serviceBus` of the 5.x extension, with its defaults; times in seconds."""

    prefetch_count: int = 0
    transport_type: str = "amqpTcp"
    auto_complete_messages: bool = True
    max_auto_lock_renewal_s: float = 300.0
    max_concurrent_calls: int = field(default_factory=lambda: 16 * (os.cpu_count() or 1))
    max_concurrent_sessions: int = 8
    max_message_batch_size: int = 1000
    min_message_batch_size: int = 1
    max_batch_wait_s: float = 30.0
    session_idle_s: float = 60.0
    enable_cross_entity_transactions: bool = False
    retry: RetryOptions = field(default_factory=RetryOptions)


@dataclass(frozen=True)
class HttpOptions:
    """`extensions.http`: the prefix of every route, and limits of this process."""

    route_prefix: str = "api"
    max_concurrent_requests: int = 100
    max_outstanding_requests: int = 200
    dynamic_throttles_enabled: bool = False
    custom_headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HostConfig:
    """What this host obeys of host.json."""

    service_bus: ServiceBusOptions = field(default_factory=ServiceBusOptions)
    http: HttpOptions = field(default_factory=HttpOptions)
    function_timeout_s: float | None = 1800.0
    functions: tuple[str, ...] | None = None
    log_level: str = "Information"
    not_obeyed: tuple[str, ...] = ()
