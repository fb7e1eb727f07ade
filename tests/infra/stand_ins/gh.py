"""``gh``: the settings of repositories, and the tags of others.

The state has ``repositories`` (by the name as GitHub spells it): ``sub`` (the answer about OIDC
subjects), ``environments`` (by name: the members of the answer, policies, variables and secrets)
and ``tags`` (by name, the commit).
Names of repositories are found without case. Sources:
docs.github.com, rest, and cli/cli.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.infra.stand_ins import Call, Refused, Rules, State

OURS = {"policies", "variables", "secrets"}
"""What the state has in an environment, and the answer has not."""


def _repository(state: State, name: str) -> tuple[str, dict[str, Any]]:
    for spelled, repository in state.get("repositories", {}).items():
        if spelled.lower() == name.lower():
            return spelled, repository
    raise Refused("gh: Not Found (HTTP 404)")


def _api(state: State, call: Call) -> object:
    method = call.options.get("--method", "GET")
    path = next(word for word in call.words if word.startswith("repos/")).partition("?")[0]
    _, owner, name, *rest = path.split("/", 4)
    spelled, repository = _repository(state, f"{owner}/{name}")
    body = json.loads(call.stdin) if call.stdin else {}
    resource = "/".join(rest)
    if not rest:
        return {"full_name": spelled}
    if resource == "actions/oidc/customization/sub":
        return repository.get("sub", {"use_default": True})
    if resource.startswith("commits/refs/tags/"):
        tag = resource.removeprefix("commits/refs/tags/")
        if tag not in repository.get("tags", {}):  # not 404: zizmorcore/zizmor pull request 972
            raise Refused(f"gh: No commit found for SHA: refs/tags/{tag} (HTTP 422)")
        return str(repository["tags"][tag])  # with --jq .sha
    match = re.fullmatch(r"environments/([^/]+)(/deployment-branch-policies)?", resource)
    assert match, resource
    return _environment(repository, match, method, body)


def _environment(
    repository: dict[str, Any], match: re.Match[str], method: str, body: dict[str, Any]
) -> object:
    environments = repository.setdefault("environments", {})
    if method == "PUT":
        return _put(environments, match[1], body)
    if match[1] not in environments:
        raise Refused("gh: Not Found (HTTP 404)")
    environment = environments[match[1]]
    if not match[2]:
        return {name: environment[name] for name in environment.keys() - OURS}
    # Only with custom policies: github-community-projects/safe-settings issue 746.
    if not (environment.get("deployment_branch_policy") or {}).get("custom_branch_policies"):
        raise Refused("gh: Not Found (HTTP 404)")
    policies = environment.setdefault("policies", [])
    if method == "POST":
        if body in policies:
            raise Refused("gh: See Other (HTTP 303)")
        policies.append(body)
        return body
    return {"total_count": len(policies), "branch_policies": policies}


def _put(environments: dict[str, Any], name: str, body: dict[str, Any]) -> object:
    """What the body leaves out is cleared: ministryofjustice/modernisation-platform issue 4516.

    The two kinds of policy cannot be the same: rest/deployments/environments.
    """
    policy = body.get("deployment_branch_policy")
    if policy and policy["protected_branches"] == policy["custom_branch_policies"]:
        raise Refused("gh: Validation Failed (HTTP 422)")
    rules = []
    if body.get("wait_timer"):
        rules.append({"type": "wait_timer", "wait_timer": body["wait_timer"]})
    if body.get("reviewers"):
        reviewers = [
            {"type": each["type"], "reviewer": {"id": each["id"]}} for each in body["reviewers"]
        ]
        no_self_review = body.get("prevent_self_review", False)
        rules.append(
            {
                "type": "required_reviewers",
                "prevent_self_review": no_self_review,
                "reviewers": reviewers,
            }
        )
    environments[name] = {
        **environments.get(name, {}),
        "name": name,
        "deployment_branch_policy": policy,
        "protection_rules": rules,
    }
    return environments[name]


def _kept(state: State, call: Call) -> dict[str, str]:
    """An environment that is not there is an error: ``pkg/cmd/variable`` and ``pkg/cmd/secret``."""
    kind = f"{call.words[1]}s"
    _, repository = _repository(state, call.options["--repo"])
    environments = repository.get("environments", {})
    if call.options["--env"] not in environments:
        raise Refused(f"failed to get {kind}: HTTP 404: Not Found")
    values: dict[str, str] = environments[call.options["--env"]].setdefault(kind, {})
    return values


def _list(state: State, call: Call) -> object:
    return [{"name": name} for name in _kept(state, call)]


def _set(state: State, call: Call) -> None:
    """Without ``--body`` the value is stdin, without line breaks at its end: ``getBody``."""
    _kept(state, call)[call.words[3]] = call.stdin.rstrip("\r\n")


def _delete(state: State, call: Call) -> None:
    del _kept(state, call)[call.words[3]]


RULES: Rules = {
    "gh api": _api,
    **{f"gh {kind} list": _list for kind in ("variable", "secret")},
    **{f"gh {kind} set": _set for kind in ("variable", "secret")},
    **{f"gh {kind} delete": _delete for kind in ("variable", "secret")},
}
