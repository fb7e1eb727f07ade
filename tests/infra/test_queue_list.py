"""infra/queues.json is the one list: code, settings, bindings and emulator say the same."""

from __future__ import annotations

import json
import re

import pytest

from sas.cli.main import main
from sas.cli.project import needs_of
from sas.config import QUEUE_SETTINGS, read_config, read_queues
from sas.deploy.queues import all_queues, emulator_config, read_list, seconds
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues, lane
from sas.domain.workflow import SMOKE
from sas.environment import CONNECTION
from tests.indexed_functions import bindings
from tests.infra.kit import ACCESS, INFRA, LOCAL, MAIN, ROOT
from tests.sample import AGENTS

LIST = read_list(ROOT)
GRANTED = LIST["access"]
NEEDS = needs_of(ROOT)
AZURE = all_queues(LIST, NEEDS.applications, NEEDS.bound)
CODE = Queues()
URGENT_ORDERS = lane(CODE.orders, urgent=True)
OF_THE_CODE = {
    *CODE.on_the_way(AGENTS),
    *(CODE.alerts, CODE.rejected, CODE.response_of(SMOKE.name)),
}


def test_lists_parameters_and_settings_follow_from_the_business(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also infra/emulator/Config.json."""
    monkeypatch.chdir(ROOT)
    assert main(["infra", "--check"]) == 0, capsys.readouterr().out


def test_the_list_the_code_and_local_settings_have_the_same_queues() -> None:
    assert {queue["name"] for queue in LIST["queues"]} == OF_THE_CODE
    assert LIST["deadLetterQueue"] == CODE.dead_letters
    assert LIST["responsePrefix"] == CODE.response_prefix
    assert LIST["ownOrdersPrefix"] == CODE.orders_of("")
    settings = {setting["name"]: setting["value"] for setting in LIST["settings"]}
    assert settings == {name: LOCAL[name] for name in QUEUE_SETTINGS.values()}
    assert {name for name in LOCAL if name.startswith("SAS_QUEUE_")} == set(settings)
    assert read_queues(LOCAL) == CODE


def test_the_local_settings_are_complete() -> None:
    config = read_config(LOCAL)
    assert "UseDevelopmentEmulator=true" in (config.service_bus.connection_string or "")
    assert config.tables.connection_string == "UseDevelopmentStorage=true"
    named = {binding["connection"] for binding in bindings().values() if "connection" in binding}
    assert named == {CONNECTION}
    placeholders = set(re.findall(r"%([^%]+)%", json.dumps(list(bindings().values()))))
    assert {CONNECTION, "FUNCTIONS_WORKER_RUNTIME", *placeholders} <= set(LOCAL)


def test_every_triggering_queue_is_one_of_the_code_that_the_app_may_receive_from() -> None:
    def expand(text: str) -> str:
        return re.sub(r"%([^%]+)%", lambda match: LOCAL[match[1]], text)

    bound = {
        expand(binding["queueName"]) for binding in bindings().values() if "queueName" in binding
    }
    queues = {name.removesuffix(DEAD_LETTER_SUBQUEUE) for name in bound}
    assert queues == {*CODE.on_the_way(AGENTS), CODE.dead_letters}
    assert set(GRANTED["appReceives"]) == queues


def test_the_app_may_send_to_every_queue_it_sends_to_or_puts_messages_back_on() -> None:
    assert set(GRANTED["appSends"]) == OF_THE_CODE | {CODE.dead_letters}
    assert set(GRANTED["appReceives"]) < set(GRANTED["appSends"])


def test_applications_may_send_orders_and_urgent_ones_where_configured() -> None:
    assert GRANTED["applicationSends"] == [CODE.orders]
    assert GRANTED["urgentApplicationSends"] == [CODE.orders, URGENT_ORDERS]


def test_an_application_with_queues_of_its_own_may_not_send_to_the_shared_one() -> None:
    assert "queues: sender.bound ? sender.ownQueues : sender.sharedQueues" in ACCESS
    own_queues = re.search(r"  ownQueues: (.+)", ACCESS)
    assert own_queues is not None
    names = re.findall(r"\['([^']+)'\]", own_queues[1])
    prefix = "${list.ownOrdersPrefix}${application.name}"
    assert names == [prefix, lane(prefix, urgent=True)]
    assert "(application.?urgent ?? false) ? ['" in own_queues[1]


def test_operators_read_what_is_for_them_and_command_by_the_scheduler() -> None:
    smoke = CODE.response_of(SMOKE.name)
    assert set(GRANTED["operatorReceives"]) == {CODE.alerts, CODE.rejected, smoke}
    lanes = {
        lane(queue, urgent=yes) for queue in (CODE.scheduler, CODE.orders) for yes in (False, True)
    }
    assert set(GRANTED["operatorSends"]) == lanes


def test_operators_may_look_into_every_queue_that_the_desk_and_dlq_look_into() -> None:
    granted = {*GRANTED["operatorReceives"], *GRANTED["appReceives"]}
    assert {CODE.dead_letters, *CODE.own(AGENTS)} <= granted
    assert not set(GRANTED["operatorReceives"]) & set(GRANTED["appReceives"]), "granted twice"
    assert "var workingQueues = concat(list.access.appReceives, ownOrdersQueues)" in ACCESS
    assert "param operatorReadsQueues bool = true" in MAIN


def test_an_application_with_queues_of_its_own_has_both_lanes_as_the_shared_one() -> None:
    names = set(all_queues(LIST, ["web"], ["web"])) - set(all_queues(LIST, []))
    bound = Queues(applications=("web",))
    lanes = {lane(bound.orders_of("web"), urgent=urgent) for urgent in (False, True)}
    assert names == {*lanes, bound.response_of("web")}
    assert all_queues(LIST, [], ["web"])["orders-web"] == AZURE["orders"]


def test_the_template_makes_and_lists_the_queues_of_the_list_and_of_the_applications() -> None:
    """The hook after a deployment removes empty queues that are not in this output."""
    messaging = (INFRA / "modules" / "messaging.bicep").read_text()
    assert "var allQueues = concat(list.queues, responses, ownQueues)\n" in messaging
    assert "var names = [for queue in allQueues: queue.name]\n" in messaging
    assert "output queueNames array = concat([list.deadLetterQueue], names)\n" in messaging
    assert "queues@2024-01-01' = [for queue in allQueues: {" in messaging
    assert "output SAS_QUEUES array = messaging.outputs.queueNames\n" in MAIN


def test_the_emulator_has_the_queues_of_azure_within_its_bounds() -> None:
    config = emulator_config(LIST, ["web"])["UserConfig"]["Namespaces"][0]
    queues = {queue["Name"]: queue["Properties"] for queue in config["Queues"]}
    assert set(queues) == set(all_queues(LIST, ["web"]))
    assert queues["responses-web"] == {
        "DeadLetteringOnMessageExpiration": True,
        "DefaultMessageTimeToLive": "PT1H",
        "DuplicateDetectionHistoryTimeWindow": "PT5M",
        "ForwardDeadLetteredMessagesTo": "dead-letters",
        "ForwardTo": "",
        "LockDuration": "PT1M",
        "MaxDeliveryCount": 5,
        "RequiresDuplicateDetection": True,
        "RequiresSession": False,
    }
    assert queues["dead-letters"]["ForwardDeadLetteredMessagesTo"] == ""
    with pytest.raises(ValueError, match="the emulator takes 50"):
        emulator_config(LIST, map(str, range(40)))


PROPERTIES = {
    *("lockDuration", "maxDeliveryCount", "maxSizeInMegabytes", "requiresSession"),
    *("enableBatchedOperations", "enablePartitioning", "requiresDuplicateDetection"),
    *("duplicateDetectionHistoryTimeWindow", "defaultMessageTimeToLive"),
    "deadLetteringOnMessageExpiration",
}


def test_every_kind_of_queue_keeps_our_rules() -> None:
    """Neither Bicep nor Service Bus says a word about a misspelt property: it is left out."""
    for kind, each in LIST["kinds"].items():
        properties = each["properties"]
        assert set(properties) == PROPERTIES
        detects = properties["requiresDuplicateDetection"]
        assert detects is (kind not in {"incoming", "deadLetters"}), kind
        assert properties["deadLetteringOnMessageExpiration"] is (kind != "request")
        if kind in {"response", "kept"}:
            assert seconds(properties["defaultMessageTimeToLive"]) >= 7 * 86_400, "people read them"
    kinds = {queue["name"]: queue["kind"] for queue in LIST["queues"]}
    assert {n for n, kind in kinds.items() if kind == "incoming"} == {CODE.orders, URGENT_ORDERS}
    agents = {CODE.agent(name, urgent=urgent) for name in AGENTS for urgent in (False, True)}
    assert {name for name, kind in kinds.items() if kind == "request"} == agents
    without = [name for name, each in AZURE.items() if "forwardDeadLetteredMessagesTo" not in each]
    assert without == [CODE.dead_letters]
    working = {name: each for name, each in AZURE.items() if name != CODE.dead_letters}
    assert {each["maxDeliveryCount"] for each in working.values()} == {5}


def test_access_names_queues_of_the_list() -> None:
    names = {queue["name"] for queue in LIST["queues"]} | {LIST["deadLetterQueue"]}
    assert {name for granted in GRANTED.values() for name in granted} <= names


def test_only_response_queues_have_the_response_prefix() -> None:
    responses = {CODE.response_of(name) for name in (*NEEDS.applications, SMOKE.name)}
    assert responses == {name for name in AZURE if name.startswith(CODE.response_prefix)}
    assert all(CODE.check_reply_queue(name) == name for name in responses)


def test_durations_are_read_and_a_text_that_is_none_is_refused() -> None:
    durations = {"PT1M": 60, "PT10M": 600, "P14D": 1209600, "P1DT2H3M4S": 93784}
    assert {text: seconds(text) for text in durations} == durations
    for text in ("", "P", "PT", "10M", "PT1.5M", "P1M"):
        with pytest.raises(ValueError, match="is not a duration"):
            seconds(text)
