"""One list of queues: bindings, settings, the emulator's Config.json and the code agree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sas.cli.project import needs_of
from sas.config import QUEUE_SETTINGS, read_config, read_queues
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues
from sas.environment import CONNECTION
from tests.indexed_functions import bindings
from tests.sample import AGENTS

ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, str] = json.loads((ROOT / "local.settings.json").read_text())["Values"]
NAMESPACE: dict[str, Any] = json.loads((ROOT / "infra/emulator/Config.json").read_text())[
    "UserConfig"
]["Namespaces"][0]
EMULATED: dict[str, dict[str, Any]] = {
    queue["Name"]: queue["Properties"] for queue in NAMESPACE["Queues"]
}
RESPONSES = {f"responses-{name}" for name in (*needs_of(ROOT).applications, "smoke")}
LANES = (
    *("orders", "scheduler"),
    *(f"agent-{name}" for name in AGENTS),
)
INTERNAL = {
    *LANES,
    *(f"{name}-urgent" for name in LANES),
    "operator-alerts",
    "orders-rejected",
    "dead-letters",
}


def expand(text: str) -> str:
    """Return a binding's text with its %SETTINGS% filled in, as a host does."""
    return re.sub(r"%([^%]+)%", lambda match: SETTINGS[match.group(1)], text)


def bound() -> set[str]:
    names = {
        expand(binding["queueName"]) for binding in bindings().values() if "queueName" in binding
    }
    return {name.removesuffix(DEAD_LETTER_SUBQUEUE) for name in names}


def test_the_names_in_the_code_are_those_of_the_settings() -> None:
    assert read_queues(SETTINGS) == Queues()
    assert set(QUEUE_SETTINGS.values()) <= set(SETTINGS)


def test_every_setting_of_a_queue_is_one_that_is_read() -> None:
    named = {name for name in SETTINGS if name.startswith("SAS_QUEUE_")}
    assert named == set(QUEUE_SETTINGS.values())


def test_every_binding_is_a_queue_of_the_code() -> None:
    queues = Queues()
    ours = {*queues.on_the_way(AGENTS), queues.dead_letters}
    assert bound() == ours


def test_the_emulator_has_every_queue_and_no_other() -> None:
    assert set(EMULATED) == INTERNAL | RESPONSES
    assert bound() <= set(EMULATED)
    assert {Queues().alerts, Queues().rejected} <= set(EMULATED)


def test_only_response_queues_have_the_response_prefix() -> None:
    queues = Queues()
    assert all(queues.check_reply_queue(name) == name for name in RESPONSES)
    assert not any(name.startswith(queues.response_prefix) for name in INTERNAL)


@pytest.mark.parametrize("name", sorted(set(EMULATED) - {"dead-letters"}))
def test_every_queue_forwards_its_dead_letters(name: str) -> None:
    assert EMULATED[name]["ForwardDeadLetteredMessagesTo"] == "dead-letters"


def test_the_queue_dead_letters_forwards_to_no_queue() -> None:
    assert EMULATED["dead-letters"]["ForwardDeadLetteredMessagesTo"] == ""


def test_duplicate_detection_is_off_where_two_applications_may_send_the_same_id() -> None:
    off = {name for name, queue in EMULATED.items() if not queue["RequiresDuplicateDetection"]}
    assert off == {"orders", "orders-urgent", "dead-letters"}


def test_only_requests_to_agents_expire_without_a_dead_letter() -> None:
    dropped = {n for n, queue in EMULATED.items() if not queue["DeadLetteringOnMessageExpiration"]}
    lanes = {Queues().agent(name, urgent=urgent) for name in AGENTS for urgent in (False, True)}
    assert dropped == lanes


def test_a_deployment_meets_the_resources_of_the_last_one() -> None:
    """Another suffix would make a second state store, without the orders of the first."""
    main = (ROOT / "infra" / "main.bicep").read_text()
    assert "targetScope = 'resourceGroup'\n" in main
    suffix = "toLower(uniqueString(subscription().id, environmentName, location))"
    assert f"var suffix = {suffix}\n" in main
    names = set(re.findall(r"ame(?:: | = )'(\w+-?)\$\{suffix\}'", main))
    assert {"ststate", "sthost", "sb-", "func-", "kv-", "id-"} <= names


def test_the_connection_of_the_bindings_is_a_setting() -> None:
    named = {binding["connection"] for binding in bindings().values() if "connection" in binding}
    assert named == {CONNECTION}
    assert CONNECTION in SETTINGS


def test_every_placeholder_of_a_binding_is_a_setting() -> None:
    text = json.dumps(list(bindings().values()))
    assert set(re.findall(r"%([^%]+)%", text)) <= set(SETTINGS)


def test_the_local_settings_are_complete_and_right() -> None:
    config = read_config(SETTINGS)
    assert config.service_bus.connection_string is not None
    assert "UseDevelopmentEmulator=true" in config.service_bus.connection_string
    assert config.tables.connection_string == "UseDevelopmentStorage=true"
    assert SETTINGS["FUNCTIONS_WORKER_RUNTIME"] == "python"
    assert len(SETTINGS["SAS_SUPERVISOR_SCHEDULE"].split()) == 6
