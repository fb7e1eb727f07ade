"""What only an owner of the resource group may do: the verb, and the hooks that try it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from sas.deploy.owner import LOCK, SECRETS_OFFICER, SECRETS_USER
from tests.infra.azd_kit import ACCOUNT, FUNCTIONS, GIVEN, GROUP, OURS, OUTPUTS, VAULT, hook
from tests.infra.kit import INFRA
from tests.infra.stand_ins import Cloud
from tests.infra.stand_ins.az_resources import assignment, group_id

OPERATOR = GIVEN["SAS_OPERATOR_PRINCIPAL_ID"]
BOTH = {(FUNCTIONS, SECRETS_USER), (OPERATOR, SECRETS_OFFICER)}
OF_OWNERS = (
    "Microsoft.Resources/subscriptions/resourceGroups/write",
    "Microsoft.Authorization/locks/write",
    *(
        f"Microsoft.Authorization/roleAssignments/write {r}"
        for r in (SECRETS_USER, SECRETS_OFFICER)
    ),
)
"""What a deploying identity may not: it has Contributor on the group, and grants few roles."""


def of_vault(cloud: Cloud) -> set[tuple[str, str]]:
    """Return who has which role on the vault."""
    return {
        (each["principalId"], each["roleDefinitionId"].rpartition("/")[2])
        for each in cloud.state["assignments"]
        if each["scope"] == VAULT
    }


def test_an_owner_makes_the_group_before_the_deployment(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    done = hook(GIVEN, tmp_path, "owner")
    assert done.returncode == 0, done.stderr
    assert cloud.state["groups"] == GROUP
    assert cloud.state["azd"] == {"AZURE_RESOURCE_GROUP": "rg-shop"}
    assert "Run this again after `azd provision`" in done.stdout

    cloud = Cloud(tmp_path, groups={"rg-shop": {"tags": None}}, azd=GIVEN)
    assert "The first half is done" in hook({}, tmp_path, "owner").stdout
    assert cloud.state["groups"]["rg-shop"]["tags"] == OURS

    Cloud(tmp_path, azd=GIVEN, forbidden=OF_OWNERS)
    done = hook({}, tmp_path, "owner")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Azure refused these to you:\n" in done.stderr


def test_an_owner_gives_the_secrets_and_locks_the_orders_after_it(tmp_path: Path) -> None:
    """A second run changes nothing."""
    cloud = Cloud(tmp_path, groups=GROUP, azd={**GIVEN, **OUTPUTS})
    done = hook({}, tmp_path, "owner")
    assert done.returncode == 0, done.stderr
    assert of_vault(cloud) == BOTH
    assert cloud.state["locks"] == [{"name": LOCK, "level": "CanNotDelete", "scope": ACCOUNT}]
    before = cloud.state
    done = hook({}, tmp_path, "owner")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {**cloud.state, "calls": []} == {**before, "calls": []}


def test_after_a_deployment_from_github_an_owner_takes_every_step(tmp_path: Path) -> None:
    """The environment of azd on this machine has older outputs or none. azd reads them again."""
    stale = {**GIVEN, **OUTPUTS, "SAS_KEY_VAULT_NAME": ""}
    cloud = Cloud(tmp_path, groups=GROUP, azd=stale, deployed=OUTPUTS)
    assert "The first half is done" not in hook({}, tmp_path, "owner").stdout
    assert of_vault(cloud) == BOTH
    assert [lock["scope"] for lock in cloud.state["locks"]] == [ACCOUNT]


def test_a_former_operator_loses_the_vault_and_a_person_with_a_right_of_their_own_keeps_it(
    tmp_path: Path,
) -> None:
    mine = assignment(VAULT, "another-person", SECRETS_OFFICER, "Given in the portal.")
    cloud = Cloud(tmp_path, groups=GROUP, assignments=[mine], azd={**GIVEN, **OUTPUTS})
    hook({"SAS_OPERATOR_PRINCIPAL_ID": "former"}, tmp_path, "owner")
    assert ("former", SECRETS_OFFICER) in of_vault(cloud)
    assert hook({}, tmp_path, "owner").returncode == 0
    assert of_vault(cloud) == {*BOTH, ("another-person", SECRETS_OFFICER)}


def test_without_a_group_that_azure_refuses_nothing_is_deployed_and_an_owner_gets_the_commands(
    tmp_path: Path,
) -> None:
    cloud = Cloud(tmp_path, forbidden=OF_OWNERS)
    done = hook(GIVEN, tmp_path)
    assert done.returncode == 1
    assert "or: .venv/bin/sas azd owner" in done.stderr
    [command] = [line.strip() for line in done.stderr.splitlines() if line.startswith("    az ")]
    assert "groups" not in cloud.state

    # It is the command that the verb runs for an owner, word by word.
    owner = Cloud(tmp_path, azd=GIVEN)
    hook({}, tmp_path, "owner")
    ran = [shlex.join(call.words).removesuffix(" --output json") for call in owner.called("az")]
    assert [words for words in ran if " create " in words] == [command]

    Cloud(tmp_path, forbidden=["Microsoft.Resources/subscriptions/resourceGroups/read"])
    done = hook(GIVEN, tmp_path, "check")
    assert (done.returncode, "An owner makes the group" in done.stderr) == (1, True)


def test_the_hook_after_provisioning_takes_the_steps_of_an_owner_or_hands_them_over(
    tmp_path: Path,
) -> None:
    settings = {**GIVEN, **OUTPUTS}
    cloud = Cloud(tmp_path, groups=GROUP)
    assert hook(settings, tmp_path, "postprovision").returncode == 0
    assert of_vault(cloud) == BOTH
    assert len(cloud.state["locks"]) == 1

    cloud = Cloud(tmp_path, groups=GROUP, forbidden=OF_OWNERS)
    done = hook(settings, tmp_path, "postprovision")
    assert done.returncode == 0
    handed = [line.split()[1:4] for line in done.stderr.splitlines() if line.startswith("    az ")]
    assert handed == [["role", "assignment", "create"]] * 2 + [["lock", "create", "--name"]]
    assert not {"assignments", "locks"} & cloud.state.keys()

    for lacking, rights in (("SAS_KEY_VAULT_NAME", 0), ("SAS_OPERATOR_PRINCIPAL_ID", 1)):
        cloud = Cloud(tmp_path, groups=GROUP, assignments=[])
        assert hook({**settings, lacking: ""}, tmp_path, "postprovision").returncode == 0
        assert len(of_vault(cloud)) == rights

    lock = {"name": "all", "level": "CanNotDelete", "scope": group_id("rg-shop")}
    cloud = Cloud(tmp_path, groups=GROUP, locks=[lock])
    assert hook(settings, tmp_path, "postprovision").returncode == 0
    assert cloud.state["locks"] == [lock]


def test_roles_that_read_secrets_are_in_the_list_of_roles() -> None:
    roles = json.loads((INFRA / "roles.json").read_text())
    assert roles["keyVaultSecretsUser"]["id"] == SECRETS_USER
    assert roles["keyVaultSecretsOfficer"]["id"] == SECRETS_OFFICER
