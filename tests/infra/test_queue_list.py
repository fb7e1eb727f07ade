"""infra/queues.json is the one list: code, settings, bindings and emulator say the same."""

from __future__ import annotations

import json
import re

import pytest

from sas.cli.main import main
from sas.cli.project import needs_of
from sas.config import QUEUE_SETTINGS
from sas.deploy.queues import all_queues, emulator_config, read_list, seconds
from sas.domain.queues import DEAD_LETTER_SUBQUEUE, Queues, lane
from sas.domain.workflow import SMOKE
from tests.indexed_functions import bindings
from tests.infra.kit import INFRA, ROOT
from tests.sample import AGENTS

LIST = read_list(ROOT)
NEEDS = needs_of(ROOT)
AZURE = all_queues(LIST, NEEDS.applications, NEEDS.bound)
LOCAL: dict[str, str] = json.loads((ROOT / "local.settings.json").read_text())["Values"]
ACCESS = (INFRA / "access" / "access.bicep").read_text()
CODE = Queues()
URGENT_ORDERS = lane(CODE.orders, urgent=True)
OF_THE_CODE = {
    *CODE.on_the_way(AGENTS),
    *(CODE.alerts, CODE.rejected, CODE.response_of(SMOKE.name)),
}


def test_lists_parameters_and_settings_follow_from_the_business(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["infra", "--check"]) == 0, capsys.readouterr().out


def test_the_list_and_the_code_have_the_same_queues() -> None:
    assert {queue["name"] for queue in LIST["queues"]} == OF_THE_CODE
    assert LIST["deadLetterQueue"] == CODE.dead_letters
    assert LIST["responsePrefix"] == CODE.response_prefix
    assert LIST["ownOrdersPrefix"] == CODE.orders_of("")


def test_the_list_and_local_settings_give_the_same_names() -> None:
    settings = {setting["name"]: setting["value"] for setting in LIST["settings"]}
    assert settings == {name: LOCAL[name] for name in QUEUE_SETTINGS.values()}


def test_every_triggering_queue_is_one_the_app_may_receive_from_and_no_other() -> None:
    def expand(text: str) -> str:
        return re.sub(r"%([^%]+)%", lambda match: LOCAL[match[1]], text)

    bound = {
        expand(binding["queueName"]) for binding in bindings().values() if "queueName" in binding
    }
    queues = {name.removesuffix(DEAD_LETTER_SUBQUEUE) for name in bound}
    assert set(LIST["access"]["appReceives"]) == queues


def test_the_app_may_send_to_every_queue_it_sends_to_or_puts_messages_back_on() -> None:
    access = LIST["access"]
    assert set(access["appSends"]) == OF_THE_CODE | {CODE.dead_letters}
    assert set(access["appReceives"]) < set(access["appSends"])


def test_applications_may_send_orders_and_urgent_ones_where_configured() -> None:
    assert LIST["access"]["applicationSends"] == [CODE.orders]
    urgent = [CODE.orders, URGENT_ORDERS]
    assert LIST["access"]["urgentApplicationSends"] == urgent


def test_operators_read_what_is_for_them_and_command_by_the_scheduler() -> None:
    smoke = CODE.response_of(SMOKE.name)
    assert set(LIST["access"]["operatorReceives"]) == {CODE.alerts, CODE.rejected, smoke}
    lanes = {
        lane(queue, urgent=yes) for queue in (CODE.scheduler, CODE.orders) for yes in (False, True)
    }
    assert set(LIST["access"]["operatorSends"]) == lanes


def test_operators_may_look_into_every_queue_that_the_desk_and_dlq_look_into() -> None:
    access = LIST["access"]
    granted = {*access["operatorReceives"], *access["appReceives"]}
    assert {CODE.dead_letters, *CODE.own(AGENTS)} <= granted
    assert not set(access["operatorReceives"]) & set(access["appReceives"]), "granted twice"
    assert "var workingQueues = concat(list.access.appReceives, ownOrdersQueues)" in ACCESS
    assert "param operatorReadsQueues bool = true" in (INFRA / "main.bicep").read_text()


def test_an_application_with_queues_of_its_own_has_both_lanes_as_the_shared_one() -> None:
    names = set(all_queues(LIST, ["web"], ["web"])) - set(all_queues(LIST, []))
    bound = Queues(applications=("web",))
    lanes = {lane(bound.orders_of("web"), urgent=urgent) for urgent in (False, True)}
    assert names == {*lanes, bound.response_of("web")}
    assert all_queues(LIST, [], ["web"])["orders-web"] == AZURE["orders"]


def test_queues_of_single_applications_are_watched() -> None:
    alerts = (INFRA / "operations" / "alerts.bicep").read_text()
    assert "values: concat(list.access.appReceives, ownOrdersQueues)" in alerts


def test_an_application_with_queues_of_its_own_may_not_send_to_the_shared_one() -> None:
    assert "queues: sender.bound ? sender.ownQueues : sender.sharedQueues" in ACCESS
    own_queues = re.search(r"  ownQueues: (.+)", ACCESS)
    assert own_queues is not None
    names = re.findall(r"\['([^']+)'\]", own_queues[1])
    prefix = "${list.ownOrdersPrefix}${application.name}"
    assert names == [prefix, lane(prefix, urgent=True)]
    assert "(application.?urgent ?? false) ? ['" in own_queues[1]


def test_the_template_makes_and_lists_the_queues_of_the_list_and_of_the_applications() -> None:
    """The hook after a deployment removes empty queues that are not in this output."""
    messaging = (INFRA / "modules" / "messaging.bicep").read_text()
    assert "var allQueues = concat(list.queues, responses, ownQueues)\n" in messaging
    assert "var names = [for queue in allQueues: queue.name]\n" in messaging
    assert "output queueNames array = concat([list.deadLetterQueue], names)\n" in messaging
    assert "queues@2024-01-01' = [for queue in allQueues: {" in messaging
    main = (INFRA / "main.bicep").read_text()
    assert "output SAS_QUEUES array = messaging.outputs.queueNames\n" in main


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


def test_a_working_queue_gives_a_message_up_that_killed_its_process_five_times() -> None:
    working = {name: each for name, each in AZURE.items() if name != CODE.dead_letters}
    assert {each["maxDeliveryCount"] for each in working.values()} == {5}


def test_every_queue_but_the_last_forwards_its_dead_letters() -> None:
    without = [name for name, each in AZURE.items() if "forwardDeadLetteredMessagesTo" not in each]
    assert without == [CODE.dead_letters]


PROPERTIES = {
    *("lockDuration", "maxDeliveryCount", "maxSizeInMegabytes", "requiresSession"),
    *("enableBatchedOperations", "enablePartitioning", "requiresDuplicateDetection"),
    *("duplicateDetectionHistoryTimeWindow", "defaultMessageTimeToLive"),
    "deadLetteringOnMessageExpiration",
}


@pytest.mark.parametrize("kind", sorted(LIST["kinds"]))
def test_every_kind_of_queue_gives_every_property_under_its_right_name(kind: str) -> None:
    """Neither Bicep nor Service Bus says a word about a misspelt one: it is left out."""
    assert set(LIST["kinds"][kind]["properties"]) == PROPERTIES


def test_access_names_queues_of_the_list() -> None:
    names = {queue["name"] for queue in LIST["queues"]} | {LIST["deadLetterQueue"]}
    assert {name for granted in LIST["access"].values() for name in granted} <= names


@pytest.mark.parametrize("kind", sorted(LIST["kinds"]))
def test_a_kind_of_queue_keeps_our_rules(kind: str) -> None:
    properties = LIST["kinds"][kind]["properties"]
    detects = properties["requiresDuplicateDetection"]
    assert detects is (kind not in {"incoming", "deadLetters"})
    assert properties["deadLetteringOnMessageExpiration"] is (kind != "request")
    if kind in {"response", "kept"}:
        assert seconds(properties["defaultMessageTimeToLive"]) >= 7 * 86_400, "people read them"


@pytest.mark.parametrize(
    ("text", "value"), [("PT1M", 60), ("PT10M", 600), ("P14D", 1209600), ("P1DT2H3M4S", 93784)]
)
def test_durations_are_read(text: str, value: int) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "P", "PT", "10M", "PT1.5M", "P1M"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(text)
