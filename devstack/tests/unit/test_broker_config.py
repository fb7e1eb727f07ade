"""Config.json, durations, names, tokens: valid values, and the sentence for each invalid one."""

import json
import time
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest

from devstack.servicebus import Broker, ConfigError, EntityStatus, QueueProperties, read_config
from devstack.servicebus.config import parse_config
from devstack.servicebus.core.errors import UnauthorizedError
from devstack.servicebus.core.properties import (
    FOREVER_S,
    check_queue_name,
    format_duration,
    parse_duration,
)
from devstack.servicebus.faults import Fault, Faults
from devstack.servicebus.tokens import KEY_NAME, TokenValidator, signature

EMULATORS_OWN = """
{
  "UserConfig": {
    "Namespaces": [  // one namespace
      {
        "Name": "sbemulatorns", /* whatever */
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": false,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": false,
              "RequiresSession": false,
              "UserMetadata": "see // this /* too */ ,]"
            }
          },
        ],
        "Topics": [{"Name": "topic.1", "Properties": {}, "Subscriptions": []}]
      }
    ],
    "Logging": {"Type": "File"}
  }
}
"""


def config_with(*queues: Any) -> str:
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": list(queues)}]}})


def test_the_emulators_file_is_read_with_its_comments() -> None:
    config = parse_config(EMULATORS_OWN)
    queue = config.queues["queue.1"]
    assert (queue.lock_duration_s, queue.max_delivery_count) == (60.0, 3)
    assert (queue.default_ttl_s, queue.duplicate_window_s) == (3600.0, 20.0)
    assert config.not_served == ("topic 'topic.1'",)


def test_a_wrong_file_gets_one_sentence() -> None:
    for text, says in (
        ("", "is not JSON: Expecting value in line 1, column 1"),
        ("{\n  bad\n}", "in line 2, column 3"),
        ("[]", "must hold a JSON object ({...}), not a list"),
        ("{}", "'UserConfig' is missing"),
        ('{"UserConfig": {}}', "'Namespaces' is missing"),
        ('{"UserConfig": {"Namespaces": {}}}', "Namespaces must be a list"),
        ('{"UserConfig": {"Namespaces": []}}', "one namespace, not 0"),
        (config_with("orders"), "Queues[0] must be an object"),
        (config_with({}), "Queues[0].Name: None cannot name a queue"),
        (config_with({"Name": "/x"}), "'/x' cannot name a queue"),
        (config_with({"Name": "a"}, {"Name": "A"}), "queue 'A' is configured twice"),
        (config_with({"Name": "a", "Properties": []}), "Properties must be an object"),
        (config_with({"Name": "a", "Properties": {"Lock": 1}}), "'Lock' is not a property"),
        (
            config_with({"Name": "a", "Properties": {"LockDuration": "1 minute"}}),
            "LockDuration: '1 minute' is not an ISO 8601 duration",
        ),
        (
            config_with({"Name": "a", "Properties": {"LockDuration": "PT1H"}}),
            "LockDuration must be from 0.05 to 300",
        ),
        (
            config_with({"Name": "a", "Properties": {"MaxDeliveryCount": 1.5}}),
            "MaxDeliveryCount must be a whole number",
        ),
        (
            config_with({"Name": "a", "Properties": {"RequiresSession": "yes"}}),
            "RequiresSession is true or false, not 'yes'",
        ),
        (config_with({"Name": "a", "Properties": {"ForwardTo": 7}}), "ForwardTo is the name"),
        (config_with({"Name": "a", "Properties": {"ForwardTo": "b"}}), "'b', which is not in"),
        (config_with({"Name": "a", "Properties": {"ForwardTo": "A"}}), "forwards to itself"),
        (
            config_with({"Name": "a", "Properties": {"Status": "active"}}),
            "Status: 'active' is none of Active, Disabled, SendDisabled, ReceiveDisabled",
        ),
        (
            config_with(
                {"Name": "a", "Properties": {"LockDuration": "PT1M", "lockduration": "PT2M"}}
            ),
            "lockduration is there twice",
        ),
        ("[" * 100_000, "nests too deep"),
    ):
        with pytest.raises(ConfigError) as refusal:
            parse_config(text)
        assert says in str(refusal.value)
        assert "\n" not in str(refusal.value)


async def test_one_name_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(ValueError, match=r"a list of names: write \['orders'\]"):
        await Broker("orders").start()


def test_a_number_of_too_many_digits_is_refused() -> None:
    with pytest.raises(ConfigError, match="too many digits"):
        parse_config('{"UserConfig": ' + "1" * 5000 + "}")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.json cannot be read"):
        read_config(tmp_path / "missing.json")
    (tmp_path / "latin.json").write_bytes(b"\xe4")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config(tmp_path / "latin.json")


def test_durations_are_read_and_written() -> None:
    for text, seconds in (
        ("PT30S", 30),
        ("PT1M", 60),
        ("PT1H30M", 5400),
        ("P1DT2H", 93600),
        ("PT0.5S", 0.5),
        ("P10675199DT2H48M5.4775807S", FOREVER_S),
    ):
        assert parse_duration(text) == seconds
        assert parse_duration(format_duration(seconds)) == seconds


def test_a_duration_of_a_million_days_is_written_without_an_exponent() -> None:
    assert format_duration(1_234_567 * 86400.0) == "P1234567D"


def test_a_text_that_is_no_duration_is_refused() -> None:
    for text in ("", "P", "PT", "1M", "P1Y", "P1M", "PT-1S", "PT1", "pt1s", 60):
        with pytest.raises(ValueError, match="ISO 8601"):
            parse_duration(cast("Any", text))


def test_names_of_queues() -> None:
    for name in ("a", "orders", "a/b", "a.b-c_d", "A1", "x" * 260):
        assert check_queue_name(name) == name


def test_what_cannot_name_a_queue() -> None:
    for name in ("", "/a", "a/", "a//b", "$x", "a b", "ä", "x" * 261, "-a", None):
        with pytest.raises(ValueError, match="cannot name a queue"):
            check_queue_name(cast("Any", name))


def test_properties_survive_their_official_names() -> None:
    properties = QueueProperties(
        lock_duration_s=7.0, requires_session=True, status=EntityStatus.SEND_DISABLED
    )
    assert QueueProperties.from_official(properties.to_official()) == properties


def token(
    key: str, resource: str = "sb://host/orders", expires_in: float = 60, name: str = KEY_NAME
) -> str:
    encoded, expiry = quote(resource, safe=""), str(int(time.time() + expires_in))
    sig = quote(signature(key, encoded, expiry), safe="")
    return f"SharedAccessSignature sr={encoded}&sig={sig}&se={expiry}&skn={name}"


def test_a_token_signed_with_the_key_covers_its_entity_only() -> None:
    now = time.time()
    claim = TokenValidator("k").check(token("k"), "a", now)
    assert claim.covers("Orders", now)
    assert claim.covers("orders/$management", now)
    assert not claim.covers("orders2", now)
    assert not claim.covers("other", now)
    assert not claim.covers("orders", now + 61)


def test_a_token_for_the_namespace_covers_every_entity() -> None:
    now = time.time()
    assert TokenValidator("k").check(token("k", "sb://host/"), "a", now).covers("any/queue", now)


def test_any_other_token_is_refused_with_the_reason() -> None:
    for signed_token, says in (
        (token("wrong"), "does not match"),
        (token("k", expires_in=-1), "expired"),
        (token("k", name="n"), "'n' is not a policy .* SharedAccessKeyName=RootManage"),
        (token("k").partition("&skn")[0], "'' is not a policy of this broker"),
        ("eyJhbGciOi", "shared access signatures only"),
        ("", "shared access signatures only"),
        ("SharedAccessSignature ", "does not match"),
        ("SharedAccessSignature sr=x&sig=%ff&se=abc", "does not match"),
    ):
        with pytest.raises(UnauthorizedError, match=says):
            TokenValidator("k").check(signed_token, "audience", time.time())


def test_without_a_key_everybody_comes_in() -> None:
    assert TokenValidator(None).check("anything", "a", 0).covers("orders", time.time())


def test_a_fault_is_used_up_by_what_it_fits() -> None:
    faults = Faults()
    faults.armed.append(Fault(kind="server-busy", queue="Orders", operation="send", remaining=2))
    assert not faults.take("server-busy", "other", "send")
    assert not faults.take("server-busy", "orders", "settle")
    assert not faults.take("delay", "orders", "send")
    assert faults.take("server-busy", "orders", "send")
    assert faults.take("server-busy", "orders", "send")
    assert not faults.take("server-busy", "orders", "send")
    assert not faults.armed
