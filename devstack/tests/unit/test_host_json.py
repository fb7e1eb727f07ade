import json
import sys
from pathlib import Path
from typing import Any

import pytest

from devstack.functions.hostjson import HostJsonError, load_host_json, parse_host_json
from devstack.functions.settings import Settings


def with_http(**options: Any) -> dict[str, Any]:
    return {"version": "2.0", "extensions": {"http": options}}


def with_service_bus(**options: Any) -> dict[str, Any]:
    return {"version": "2.0", "extensions": {"serviceBus": options}}


def test_the_defaults_are_those_of_the_extension() -> None:
    options = parse_host_json({"version": "2.0"}).service_bus
    assert options.prefetch_count == 0
    assert options.auto_complete_messages
    assert options.max_auto_lock_renewal_duration_s == 300
    assert options.max_concurrent_calls % 16 == 0
    assert (options.max_concurrent_sessions, options.max_message_batch_size) == (8, 1000)


def test_the_service_bus_part_of_the_file_is_applied() -> None:
    options = parse_host_json(
        with_service_bus(
            maxConcurrentCalls=4,
            maxAutoLockRenewalDuration="00:10:00",
            autoCompleteMessages=False,
            clientRetryOptions={"mode": "Fixed", "delay": "00:00:01", "maxRetries": 9},
        )
    ).service_bus
    assert (options.max_concurrent_calls, options.max_auto_lock_renewal_duration_s) == (4, 600)
    assert not options.auto_complete_messages
    assert (options.retry.mode, options.retry.delay_s, options.retry.max_retries) == ("fixed", 1, 9)


def test_requests_are_bounded_only_where_the_file_says_so() -> None:
    http = parse_host_json(with_http(maxConcurrentRequests=16, maxOutstandingRequests=-1)).http
    assert (http.max_concurrent_requests, http.max_outstanding_requests) == (16, sys.maxsize)
    assert parse_host_json({"version": "2.0"}).http.max_concurrent_requests == sys.maxsize


def test_a_wrong_file_is_refused_with_a_sentence() -> None:
    for content, sentence in (
        ({}, '"version": "2.0"'),
        ({"version": "2.0", "extension": {}}, r"did you mean extensions\?"),
        (with_service_bus(maxConcurentCalls=4), r"did you mean maxConcurrentCalls\?"),
        (with_service_bus(maxConcurrentCalls=0), "maxConcurrentCalls must be a whole number"),
        (with_service_bus(maxConcurrentCalls="many"), "must be a whole number"),
        (with_service_bus(maxConcurrentCalls=True), "must be a whole number"),
        (with_service_bus(maxConcurrentCalls="--2"), "must be a whole number of at least 1"),
        (with_service_bus(maxConcurrentCalls="²"), "must be a whole number of at least 1"),
        (with_service_bus(maxAutoLockRenewalDuration=300), "must be a time such as"),
        (with_service_bus(maxAutoLockRenewalDuration="5 min"), "write hh:mm:ss"),
        (
            with_service_bus(clientRetryOptions={"tryTimeout": "00:00:00"}),
            "tryTimeout must be more",
        ),
        (with_service_bus(autoCompleteMessages="perhaps"), "must be true or false"),
        (with_service_bus(clientRetryOptions={"tries": 3}), "has no key 'tries'"),
        (with_service_bus(clientRetryOptions=3), "must be an object"),
        (with_service_bus(minMessageBatchSize=20, maxMessageBatchSize=10), "make it smaller"),
        (with_service_bus(maxBatchWaitTime="00:05:00"), "at most 00:02:30"),
        ({"version": "2.0", "extensions": {"serviceBuss": {}}}, r"did you mean serviceBus\?"),
        (with_http(routePrefix=1), "routePrefix must be a string"),
        (with_http(maxConcurrentRequests=0), "maxConcurrentRequests must be a whole number"),
        (with_http(maxOutstandingRequest=3), r"did you mean maxOutstandingRequests\?"),
        ({"version": "2.0", "functionTimeout": "soon"}, "functionTimeout"),
        ({"version": "2.0", "functions": "f"}, "must be a list"),
        ({"version": "2.0", "logging": {"logLevel": {"default": "Loud"}}}, "must be one of"),
        ({"version": "2.0", "logging": {"logLevel": {"default": ["Loud"]}}}, "must be one of"),
        ({"version": "2.0", "logging": {"logLevel": "Loud"}}, "logLevel must be an object"),
    ):
        with pytest.raises(HostJsonError, match=sentence):
            parse_host_json(content)


def test_every_section_that_is_not_applied_is_named() -> None:
    content = {
        "version": "2.0",
        "telemetryMode": "OpenTelemetry",
        "extensionBundle": {"id": "x"},
        "healthMonitor": {},
        "retry": {"strategy": "fixedDelay"},
        "functionTimeout": "00:05:00",
        "logging": {"console": {}, "logLevel": {"default": "Warning", "Host.Results": "Error"}},
    }
    assert parse_host_json(content).not_applied == (
        "extensionBundle",
        "healthMonitor",
        "logging.console",
        "logging.logLevel.Host.Results",
        "retry",
        "telemetryMode",
    )


def test_no_function_timeout_is_written_minus_one() -> None:
    assert parse_host_json({"version": "2.0", "functionTimeout": "-1"}).function_timeout_s is None
    assert parse_host_json({"version": "2.0"}).function_timeout_s == 1800


def test_a_setting_overrides_the_file_as_in_azure(tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text(json.dumps(with_service_bus(maxConcurrentCalls=4)))
    settings = Settings(
        {
            "AzureFunctionsJobHost__extensions__serviceBus__maxConcurrentCalls": "2",
            "azurefunctionsjobhost__extensions__http__routeprefix": "v1",
        }
    )
    config = load_host_json(tmp_path, settings)
    assert (config.service_bus.max_concurrent_calls, config.http.route_prefix) == (2, "v1")


def test_an_override_that_does_not_exist_is_refused_like_a_key(tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text('{"version": "2.0"}')
    settings = Settings({"AzureFunctionsJobHost__extensions__serviceBus__calls": "2"})
    with pytest.raises(HostJsonError, match="has no key 'calls'"):
        load_host_json(tmp_path, settings)


def test_a_missing_file_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(HostJsonError, match="create it with"):
        load_host_json(tmp_path, Settings({}))
