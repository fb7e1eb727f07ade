"""``sas azd sign-in``: one identity with few rights, which only main and tags v* can use."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from sas.cli.main import main
from sas.deploy.azd import parameter_variables
from sas.deploy.github import ISSUER, SECRETS, condition, settings
from tests.infra.kit import INFRA, MAIN, PARAMETERS, ROOT
from tests.infra.stand_ins import Cloud
from tests.infra.stand_ins.az_ad import TENANT, app
from tests.infra.stand_ins.az_resources import SUBSCRIPTION, assignment, group_id
from tests.infra.stand_ins.in_process import call_in_process

CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"
ACCESS = "f58310d9-a9f6-439a-9e8d-f62e7b41a168"
SCOPE = group_id("rg-shop")
VALUES = {
    "AZURE_ENV_NAME": "shop",
    "AZURE_LOCATION": "westeurope",
    "AZURE_SUBSCRIPTION_ID": SUBSCRIPTION,
    "ORDERS_STOCK_URL": "https://stock.example",
    "UNRELATED": "stays here",
}
REPOSITORY: dict[str, Any] = {"sub": {"use_default": True}}
REVIEWERS = [{"type": "Team", "reviewer": {"id": 7}}]
MINE = app("deploy-shop", "client-0")


def cloud(path: Path, **state: Any) -> Cloud:
    return Cloud(path, **{"azd": VALUES, "repositories": {"me/Shop": REPOSITORY}, **state})


@pytest.fixture(autouse=True)
def _commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    call_in_process(tmp_path, monkeypatch)


def sas(*words: str) -> tuple[int, str, str]:
    """Return the exit code of the command, and what it printed."""
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        code = main(["azd", *words])
    return code, output.getvalue(), errors.getvalue()


def signed_in(path: Path, *options: str, **state: Any) -> tuple[dict[str, Any], str]:
    """Return what there is after a sign-in, and what it printed."""
    after = cloud(path, **state)
    code, output, errors = sas("sign-in", "me/shop", *options)
    assert code == 0, errors
    return after.state, output


def refused(path: Path, **state: Any) -> str:
    """Return why the sign-in is refused. Nothing may be trusted or granted then."""
    after = cloud(path, **state)
    code, output, errors = sas("sign-in", "me/shop")
    assert code == 1, output
    assert after.called("az ad app federated-credential create") == []
    assert after.called("az role assignment create") == []
    return errors


def trusted(state: dict[str, Any], client: str = "client-0") -> dict[str, str]:
    return {each["name"]: each["subject"] for each in state["credentials"][client]}


def credential(name: str, subject: str) -> dict[str, str]:
    return {"id": f"id-{name}", "name": name, "issuer": ISSUER, "subject": subject}


def environments(state: dict[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = state["repositories"]["me/Shop"]["environments"]
    return named


def test_the_subject_is_what_github_says_that_it_signs(tmp_path: Path) -> None:
    immutable: dict[str, Any] = {"use_default": True, "use_immutable_subject": False}
    immutable["sub_claim_prefix"] = "repo:me@1234/Shop@5678"
    for answer, prefix in (
        # An older answer has no prefix. GitHub's spelling counts, not the one of the command.
        ({"use_default": True}, "repo:me/Shop"),
        # What azure-dev issue 9382 shows: the prefix decides, whatever the other member says.
        (immutable, "repo:me@1234/Shop@5678"),
    ):
        state, _ = signed_in(tmp_path, repositories={"me/Shop": {"sub": answer}})
        assert trusted(state) == {
            "sas-production": f"{prefix}:environment:production",
            "sas-production-plan": f"{prefix}:environment:production-plan",
        }
        for each in state["credentials"]["client-0"]:
            assert each["issuer"] == "https://token.actions.githubusercontent.com"
            assert each["audiences"] == ["api://AzureADTokenExchange"]


def test_only_credentials_of_ours_are_replaced_and_others_are_named(tmp_path: Path) -> None:
    older = [
        credential("theirs", "repo:me/Shop:ref:refs/heads/main"),
        credential("sas-production", "repo:me/Old:environment:production"),
    ]
    state, output = signed_in(
        tmp_path,
        apps=[MINE],
        owners={"client-0": [{"id": "me"}]},
        credentials={"client-0": older},
    )
    assert trusted(state) == {
        "theirs": "repo:me/Shop:ref:refs/heads/main",
        "sas-production": "repo:me/Shop:environment:production",
        "sas-production-plan": "repo:me/Shop:environment:production-plan",
    }
    assert "credential theirs lets repo:me/Shop:ref:refs/heads/main deploy too" in output
    # Entra ID refuses a subject twice. Earlier versions named the credential `production`.
    older = [credential("production", "repo:me/Shop:environment:production")]
    state, _ = signed_in(tmp_path, apps=[MINE], credentials={"client-0": older})
    assert set(trusted(state)) == {"production", "sas-production-plan"}


def test_staging_has_an_identity_and_environments_of_its_own(tmp_path: Path) -> None:
    values = {**VALUES, "AZURE_ENV_NAME": "shop-staging"}
    state, _ = signed_in(tmp_path, "--environment", "staging", azd=values)
    assert set(trusted(state)) == {"sas-staging", "sas-staging-plan"}
    assert set(environments(state)) == {"staging", "staging-plan"}
    assert [each["displayName"] for each in state["apps"]] == ["deploy-shop-staging"]


def test_the_application_is_the_one_that_azd_remembers_or_that_has_just_the_name(
    tmp_path: Path,
) -> None:
    state, _ = signed_in(tmp_path, apps=[app("deploy-shop-of-others", "client-9")])
    assert list(state["credentials"]) == ["client-1"]
    values = {**VALUES, "SAS_DEPLOY_CLIENT_ID": "client-7"}
    state, _ = signed_in(tmp_path, azd=values, apps=[MINE, app("renamed", "client-7")])
    assert list(state["credentials"]) == ["client-7"]


KEYS = [{"keyId": "k"}]
SP = app("deploy-shop", "client-0", id="principal-client-0")
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"apps": [MINE, app("deploy-shop", "client-1")]}, "2 applications have the name"),
    ({"apps": [{**MINE, "passwordCredentials": KEYS}]}, "has passwordCredentials"),
    ({"apps": [{**MINE, "keyCredentials": KEYS}]}, "has keyCredentials"),
    (
        {"apps": [MINE], "owners": {"client-0": [{"id": "you", "displayName": "Bob"}]}},
        "other owners, who could let anybody deploy: Bob",
    ),
    (
        {"apps": [MINE], "sps": [{**SP, "passwordCredentials": KEYS}]},
        "az ad sp credential list --id principal-client-0",
    ),
    (
        {"apps": [MINE], "sps": [SP], "owners": {"principal-client-0": [{"id": "you"}]}},
        "other owners",
    ),
    ({"azd": {**VALUES, "SAS_DEPLOY_CLIENT_ID": "gone"}}, "no application gone any more"),
    ({"account": {"id": "another"}}, f"az account set --subscription {SUBSCRIPTION}"),
    (
        {"forbidden": ["Microsoft.Resources/subscriptions/resourceGroups/write"]},
        "az group create --name rg-shop",
    ),
    (
        {
            "groups": {"rg-shop": {}},
            "providers": {"microsoft.insights": "NotRegistered"},
            "forbidden": ["microsoft.insights/register/action"],
        },
        "az provider register --namespace microsoft.insights --wait",
    ),
    ({"repositories": {}}, "no such repository, or you are no administrator of it"),
    (
        {"repositories": {"me/Shop": {"sub": {"use_default": False}}}},
        "-F use_default=true",
    ),
]


def test_what_others_could_use_or_who_lacks_a_right_is_refused_with_advice(tmp_path: Path) -> None:
    for state, sentence in OTHERS:
        assert sentence in refused(tmp_path, **state)


def test_the_identity_has_rights_on_the_resource_group_and_nowhere_else(tmp_path: Path) -> None:
    state, _ = signed_in(tmp_path, providers={"microsoft.insights": "NotRegistered"})
    assert state["providers"] == {"microsoft.insights": "Registered"}, "nobody else can"
    granted = {each["roleDefinitionId"].rpartition("/")[2]: each for each in state["assignments"]}
    assert set(granted) == {CONTRIBUTOR, ACCESS}
    assert {each["scope"] for each in granted.values()} == {SCOPE}
    assert granted[ACCESS]["condition"] == condition()
    assert state["azd"]["SAS_DEPLOYER_PRINCIPAL_ID"] == granted[ACCESS]["principalId"]


def test_the_older_rights_on_the_subscription_are_removed_and_others_named(tmp_path: Path) -> None:
    above, principal = f"/subscriptions/{SUBSCRIPTION}", "principal-client-0"
    older = [
        assignment(above, principal, CONTRIBUTOR, None),
        assignment(above, principal, ACCESS, None),
        assignment(above, principal, "reader", None),
        assignment(f"{SCOPE}/a-queue", principal, "sender", "sas: an operator sends"),
        assignment(above, "somebody", CONTRIBUTOR, None),
    ]
    state, output = signed_in(tmp_path, apps=[MINE], assignments=older)
    assert [each for each in state["assignments"] if each in older] == older[2:]
    assert re.findall(r"remove it if nothing needs it: (.*)", output) == [older[2]["id"]]


def test_an_owner_of_the_resource_group_alone_signs_in_too(tmp_path: Path) -> None:
    """Azure lists the rights above the group for who may read the group."""
    older = assignment(f"/subscriptions/{SUBSCRIPTION}", "principal-client-0", CONTRIBUTOR, None)
    stale = {**assignment(SCOPE, "principal-client-0", ACCESS, None), "condition": "any role"}
    rights = ("roleAssignments/read", "roleAssignments/delete")
    state, output = signed_in(
        tmp_path,
        apps=[MINE],
        assignments=[older],
        groups={"rg-shop": {"tags": {"azd-env-name": "shop"}}},
        forbidden=[f"subscription: Microsoft.Authorization/{right}" for right in rights],
    )
    assert older in state["assignments"]
    granted = [each for each in state["assignments"] if each["scope"] == SCOPE]
    assert len(granted) == 2
    assert f"    az role assignment delete --ids {older['id']}" in output

    state, _ = signed_in(tmp_path, apps=[MINE], assignments=[stale])
    assert {each["condition"] for each in state["assignments"]} == {condition(), None}


def test_the_condition_names_each_role_of_the_list_but_those_that_an_owner_grants() -> None:
    roles = json.loads((INFRA / "roles.json").read_text()).values()
    listed = {role["id"] for role in roles if not role.get("owner")}
    [half, other] = re.findall(r"GuidEquals \{(.+?)\}", condition())
    assert half == other
    assert set(half.split(", ")) == listed


def test_main_and_tags_of_versions_deploy_in_a_fresh_repository_and_nothing_else(
    tmp_path: Path,
) -> None:
    """Without a classic rule, the policy `protected branches` lets each branch deploy."""
    state, _ = signed_in(tmp_path)
    assert set(environments(state)) == {"production", "production-plan"}
    for environment in environments(state).values():
        assert environment["deployment_branch_policy"] == {
            "protected_branches": False,
            "custom_branch_policies": True,
        }
        assert environment["policies"] == [
            {"name": "main", "type": "branch"},
            {"name": "v*", "type": "tag"},
        ]


def test_reviewers_and_rules_that_people_made_stay(tmp_path: Path) -> None:
    pause = {"type": "wait_timer", "wait_timer": 5}
    review = {"type": "required_reviewers", "prevent_self_review": True, "reviewers": REVIEWERS}
    production: dict[str, Any] = {
        "name": "production",
        "deployment_branch_policy": {"protected_branches": True, "custom_branch_policies": False},
        "protection_rules": [
            {"type": "wait_timer", "wait_timer": 5},
            review,
            {"type": "branch_policy"},
        ],
        "policies": [{"name": "hotfix", "type": "branch"}],
    }
    repository = {**REPOSITORY, "environments": {"production": production}}
    state, output = signed_in(tmp_path, repositories={"me/Shop": repository})
    after = environments(state)["production"]
    assert after["protection_rules"] == [pause, review]
    assert after["deployment_branch_policy"]["custom_branch_policies"]
    assert "production lets the branch hotfix deploy too" in output


def test_both_environments_have_the_values_of_azd_and_no_older_ones(tmp_path: Path) -> None:
    """An address for alerts is a secret, which no list of processes and no log of a run shows.

    The sign-in of earlier versions made a variable of it.
    """
    address = "https://events.example/key"
    stale = {"SAS_SERVICE_BUS_SKU": "Premium", "THEIR_OWN": "stays"}
    older = {"production-plan": {"variables": stale, "deployment_branch_policy": None}}
    older["production"] = {
        "variables": {"SAS_OPERATOR_WEBHOOKS": address},
        "deployment_branch_policy": None,
    }
    after = cloud(
        tmp_path,
        azd={**VALUES, "SAS_OPERATOR_WEBHOOKS": address},
        repositories={"me/Shop": {**REPOSITORY, "environments": older}},
    )
    assert sas("sign-in", "me/shop")[0] == 0
    needed = {
        "AZURE_CLIENT_ID": "client-0",
        "AZURE_TENANT_ID": TENANT,
        "AZURE_RESOURCE_GROUP": "rg-shop",
        "SAS_DEPLOYER_PRINCIPAL_ID": "principal-client-0",
        **{name: text for name, text in VALUES.items() if name != "UNRELATED"},
    }
    named = environments(after.state)
    assert named["production"]["variables"] == needed
    assert named["production-plan"]["variables"] == {**needed, "THEIR_OWN": "stays"}
    for environment in named.values():
        assert environment["secrets"] == {"SAS_OPERATOR_WEBHOOKS": address}
    assert not [call for call in after.called() if address in " ".join(call.words)]

    repositories = after.state["repositories"]
    state, _ = signed_in(tmp_path, repositories=repositories)  # azd lacks the secret now
    assert [each["secrets"] for each in environments(state).values()] == [{}, {}]


def test_each_secure_parameter_but_the_settings_of_the_business_is_a_secret() -> None:
    secure = set(re.findall(r"@secure\(\)\n(?:@.*\n)*param (\w+)", MAIN))
    values = [str(PARAMETERS[name]["value"]) for name in secure - {"businessSettings"}]
    assert {name for text in values for name in re.findall(r"\{(\w+)", text)} == set(SECRETS)


def test_a_second_sign_in_changes_nothing(tmp_path: Path) -> None:
    before, _ = signed_in(tmp_path)
    assert sas("sign-in", "me/shop")[0] == 0
    after = json.loads((tmp_path / "state.json").read_text())
    del before["calls"], after["calls"]
    assert after == before


def test_the_workflow_hands_over_every_variable_that_the_parameters_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {name: f"value of {name}" for name in parameter_variables()}
    variables |= {"AZURE_RESOURCE_GROUP": "rg-shop"}
    monkeypatch.setenv("VARS", json.dumps({**variables, "PATH": "/theirs"}))
    code, output, _ = sas("settings")
    assert code == 0
    assert dict(line.split("=", 1) for line in output.splitlines()) == variables
    environ = {"VARS": "{}", "SAS_OPERATOR_WEBHOOKS": "https://events.example/key"}
    assert settings(environ) == "SAS_OPERATOR_WEBHOOKS=https://events.example/key\n"


def test_a_variable_cannot_define_another_one() -> None:
    value = "https://stock.example\nLD_PRELOAD=x"
    for environ in (
        {"VARS": json.dumps({"ORDERS_STOCK_URL": value})},
        {"SAS_OPERATOR_WEBHOOKS": value},
    ):
        with pytest.raises(ValueError, match="line break"):
            settings(environ)
