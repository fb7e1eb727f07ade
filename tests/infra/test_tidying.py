"""What a deployment takes away: rights and queues that the template no longer gives."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.infra.azd_kit import ACCOUNT, FUNCTIONS, GIVEN, OUTPUTS, hook
from tests.infra.kit import INFRA
from tests.infra.stand_ins import Cloud
from tests.infra.stand_ins.az_resources import assignment, group_id, queue

SENDER = "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39"
RECEIVER = "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0"
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
LISTS = ("SAS_ROLE_ASSIGNMENTS", "SAS_QUEUES")
DELETE = "Microsoft.Authorization/roleAssignments/delete"
NAMESPACE = group_id("rg-shop") + "/providers/Microsoft.ServiceBus/namespaces/sb-1"
LOCK = {"name": "orders-stay", "level": "CanNotDelete", "scope": ACCOUNT}


def on_queue(name: str, principal: str, role: str, why: str = "sas: why") -> dict[str, Any]:
    return assignment(f"{NAMESPACE}/queues/{name}", principal, role, why)


KEPT = [
    on_queue("orders", "web-shop", SENDER),
    on_queue("orders", FUNCTIONS, RECEIVER),
    assignment(group_id("rg-shop"), "operators", READER, "sas: Operators look around."),
]
WHOLESALE = [
    on_queue("orders", "wholesale", SENDER),
    on_queue("responses-wholesale", "wholesale", RECEIVER),
    on_queue("responses-wholesale", FUNCTIONS, SENDER),
]


def deployed(
    path: Path, *, assignments: list[dict[str, Any]], queues: list[dict[str, Any]], **state: Any
) -> Cloud:
    """Return the group after a deployment that gives ``KEPT`` and the queue ``orders``."""
    present = {each["name"]: each for each in [queue("orders", {"active": 3}), *queues]}
    namespace = {"group": "rg-shop", "sku": {"name": "Standard"}, "queues": present}
    return Cloud(
        path,
        groups={"rg-shop": {}},
        namespaces={"sb-1": namespace},
        assignments=[*KEPT, *assignments],
        **{"locks": [LOCK], **state},
    )


def tidied(path: Path, **changes: str) -> str:
    """Run the hook after provisioning; return what it printed."""
    outputs = {
        **OUTPUTS,
        "SAS_KEY_VAULT_NAME": "",
        "ServiceBus__fullyQualifiedNamespace": "sb-1.servicebus.windows.net",
        "SAS_ROLE_ASSIGNMENTS": json.dumps([each["name"].upper() for each in KEPT]),
        "SAS_QUEUES": '["orders"]',
    }
    done = hook({**GIVEN, **outputs, **changes}, path, "postprovision")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def queues_of(cloud: Cloud) -> set[str]:
    return set(cloud.state["namespaces"]["sb-1"]["queues"])


def test_an_application_that_is_not_in_the_parameters_loses_its_rights_and_its_empty_queue(
    tmp_path: Path,
) -> None:
    cloud = deployed(tmp_path, assignments=WHOLESALE, queues=[queue("responses-wholesale")])
    printed = tidied(tmp_path)
    assert cloud.state["assignments"] == KEPT
    assert queues_of(cloud) == {"orders"}
    assert "Removed the right of wholesale on orders" in printed
    assert "Removed the empty queue responses-wholesale" in printed


def test_a_queue_with_a_message_of_any_kind_or_without_counts_stays(tmp_path: Path) -> None:
    for kind in ("active", "deadLetter", "scheduled", "transferDeadLetter"):
        full = queue("responses-wholesale", {kind: 2})
        cloud = deployed(tmp_path, assignments=WHOLESALE, queues=[full])
        assert f"It stays: it has messages ({kind}MessageCount 2)" in tidied(tmp_path)
        assert queues_of(cloud) == {"orders", "responses-wholesale"}
        right = on_queue("responses-wholesale", FUNCTIONS, SENDER)
        assert cloud.state["assignments"] == [*KEPT, right]
    unknown = {**queue("callbacks"), "messageCount": None, "countDetails": None}
    cloud = deployed(tmp_path, assignments=[], queues=[unknown])
    tidied(tmp_path)
    assert "callbacks" in queues_of(cloud)


def test_the_code_that_still_runs_keeps_its_queue_and_its_rights_on_it_for_a_day(
    tmp_path: Path,
) -> None:
    right = on_queue("callbacks", FUNCTIONS, RECEIVER)
    recent = f"{datetime.now(UTC) - timedelta(hours=23):%Y-%m-%dT%H:%M:%S.1234567Z}"
    cloud = deployed(tmp_path, assignments=[right], queues=[queue("callbacks", accessed=recent)])
    assert "A deployment a day later removes it" in tidied(tmp_path)
    assert right in cloud.state["assignments"]
    assert "callbacks" in queues_of(cloud)

    old = f"{datetime.now(UTC) - timedelta(hours=25):%Y-%m-%dT%H:%M:%S}"
    cloud = deployed(tmp_path, assignments=[right], queues=[queue("callbacks", accessed=old)])
    tidied(tmp_path)
    assert cloud.state["assignments"] == KEPT
    assert queues_of(cloud) == {"orders"}


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    others = [
        on_queue("orders", "a-person", RECEIVER, "Given in the portal."),
        {**on_queue("orders", "a-person", SENDER), "description": None},
        assignment(group_id("rg-shop-2"), "a-person", READER, "sas: of a namesake"),
        assignment(group_id("rg-shop").rpartition("/resourceGroups")[0], "x", READER, "sas: above"),
    ]
    audit = {**queue("audit"), "forwardDeadLetteredMessagesTo": None}
    cloud = deployed(tmp_path, assignments=others, queues=[audit])
    assert tidied(tmp_path) == ""
    assert cloud.state["assignments"] == [*KEPT, *others]
    assert queues_of(cloud) == {"orders", "audit"}


def test_a_right_that_azure_does_not_let_go_is_named(tmp_path: Path) -> None:
    locked = assignment(ACCOUNT, "former", READER, "sas: Operators look at orders.")
    cloud = deployed(tmp_path, assignments=[locked, *WHOLESALE], queues=[])
    printed = tidied(tmp_path)
    assert cloud.state["assignments"] == [*KEPT, locked]
    assert "A lock forbids it" in printed
    assert f"az role assignment delete --ids {locked['id']}" in printed
    cloud = deployed(tmp_path, assignments=WHOLESALE, queues=[], forbidden=[DELETE])
    assert tidied(tmp_path).count("Azure refused it to you. An owner runs") == len(WHOLESALE)
    assert cloud.state["assignments"] == [*KEPT, *WHOLESALE]


def test_a_template_without_the_lists_is_no_order_to_remove_everything(tmp_path: Path) -> None:
    for output in LISTS:
        for value in ("", "[]"):
            cloud = deployed(tmp_path, assignments=WHOLESALE, queues=[queue("callbacks")])
            assert tidied(tmp_path, **{output: value}) == ""
            assert cloud.state["assignments"] == [*KEPT, *WHOLESALE]
            assert queues_of(cloud) == {"orders", "callbacks"}


def test_the_outputs_that_the_hook_reads_are_outputs_of_the_template() -> None:
    bicep = (INFRA / "main.bicep").read_text()
    for name in (*OUTPUTS, "ServiceBus__fullyQualifiedNamespace", *LISTS):
        assert f"output {name} " in bicep, name
