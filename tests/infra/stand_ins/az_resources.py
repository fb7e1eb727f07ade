"""``az`` for groups, roles, role assignments, locks, providers and queues of Service Bus.

The state has ``groups`` (by name), ``roles``, ``assignments``, ``locks`` (lists), ``providers`` (by
name, the state of registration), ``namespaces`` (by name, with ``queues`` by name) and
``forbidden``: the actions that Azure refuses to who is signed in. Sources: azure-cli 2.91, in
``src/azure-cli/azure/cli/command_modules``, and what is named at a rule.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from tests.infra.stand_ins import Call, Refused, Rules, State

SUBSCRIPTION = "5ab5c41f-0000-4000-8000-000000000000"
AUTHORIZATION = "providers/Microsoft.Authorization"
KINDS = ("active", "deadLetter", "scheduled", "transfer", "transferDeadLetter")
"""Of the messages that a queue counts."""


def group_id(name: str) -> str:
    """Return the resource id of a group in the one subscription."""
    return f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{name}"


def assignment(scope: str, principal: str, role: str, description: str | None) -> dict[str, Any]:
    """Return a role assignment as the state keeps it, with the members of ``az ... list``."""
    name = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{scope} {principal} {role}"))
    definition = f"/subscriptions/{SUBSCRIPTION}/{AUTHORIZATION}/roleDefinitions/{role}"
    return {
        "id": f"{scope}/{AUTHORIZATION}/roleAssignments/{name}",
        "name": name,
        "scope": scope,
        "principalId": principal,
        "roleDefinitionId": definition,
        "description": description,
    }


def queue(
    name: str, counts: Mapping[str, int] | None = None, *, accessed: str = "0001-01-01T00:00:00"
) -> dict[str, Any]:
    """Return a queue as ``servicebus/aaz/latest/servicebus/queue/_list.py`` prints it.

    ``accessedAt`` of a queue that nobody used is in the year 1 (Get-AzServiceBusQueue, example 1).
    """
    numbers = {kind: (counts or {}).get(kind, 0) for kind in KINDS}
    return {
        "name": name,
        "accessedAt": accessed,
        "forwardDeadLetteredMessagesTo": "dead-letters",
        "messageCount": sum(numbers.values()),
        "countDetails": {f"{kind}MessageCount": number for kind, number in numbers.items()},
    }


def _allowed(state: State, action: str, scope: str) -> None:
    """The text of a refusal: azure-docs issue 17009.

    ``subscription: ACTION`` is forbidden on the subscription itself alone.
    """
    whole = scope.lower() == f"/subscriptions/{SUBSCRIPTION}"
    forbidden = state.get("forbidden", ())
    if action in forbidden or (whole and f"subscription: {action}" in forbidden):
        raise Refused(
            "(AuthorizationFailed) The client 'c' with object id 'c' does not have authorization "
            f"to perform action '{action}' over scope '{scope}' or the scope is invalid. If access "
            "was recently granted, please refresh your credentials.\nCode: AuthorizationFailed"
        )


def _group_show(state: State, call: Call) -> object:
    name = call.options["--name"]
    _allowed(state, "Microsoft.Resources/subscriptions/resourceGroups/read", group_id(name))
    if name not in state.get("groups", {}):
        raise Refused(
            f"(ResourceGroupNotFound) Resource group '{name}' could not be found.\n"
            "Code: ResourceGroupNotFound"
        )
    return {"id": group_id(name), "name": name, "tags": None, **state["groups"][name]}


def _group_create(state: State, call: Call) -> object:
    name = call.options["--name"]
    _allowed(state, "Microsoft.Resources/subscriptions/resourceGroups/write", group_id(name))
    tags = dict([call.options["--tags"].split("=", 1)])
    state.setdefault("groups", {})[name] = {"location": call.options["--location"], "tags": tags}
    return _group_show(state, call)


def _tag_update(state: State, call: Call) -> object:
    """``resource/_help.py``, tag update: Merge keeps the other tags."""
    name, _, value = call.options["--tags"].partition("=")
    group = state["groups"][call.options["--resource-id"].rpartition("/")[2]]
    group["tags"] = {**(group.get("tags") or {}), name: value}
    return group


def _assignment_create(state: State, call: Call) -> object:
    scope, role = call.options["--scope"], call.options["--role"]
    _allowed(state, f"Microsoft.Authorization/roleAssignments/write {role}", scope)
    principal = call.options["--assignee-object-id"]
    new = assignment(scope, principal, role, call.options.get("--description"))
    new |= {
        "principalType": call.options["--assignee-principal-type"],
        "condition": call.options.get("--condition"),
    }
    if new["id"] not in [each["id"] for each in state.setdefault("assignments", [])]:
        state["assignments"].append(new)  # it exists: printed, and no error
    return new


def _assignment_delete(state: State, call: Call) -> None:
    """A lock forbids it: azure-docs issue 110791."""
    name = call.options["--ids"]
    for each in _at(state, "assignments", name):
        _allowed(state, "Microsoft.Authorization/roleAssignments/delete", each["scope"])
        for lock in state.get("locks", ()):
            if lock["level"] == "CanNotDelete" and _within(each["scope"], lock["scope"]):
                raise Refused(
                    f"(ScopeLocked) The scope '{name}' cannot perform delete operation because "
                    f"following scope(s) are locked: '{lock['scope']}'. Please remove the lock and "
                    "try again.\nCode: ScopeLocked"
                )
        state["assignments"].remove(each)


def _rest(state: State, call: Call) -> object:
    """List the role assignments that apply to a scope: above, at and below it, without a filter.

    learn.microsoft.com, rest/api/authorization/role-assignments/list-for-scope, and azure/role-
    based-access-control/role-assignments-list-rest: ``atScope()`` is what leaves out those below.
    Here a page has two, to have a next one.
    """
    url, _, page = call.options["--url"].partition("&skip=")
    scope = url.partition(f"/{AUTHORIZATION}/roleAssignments?api-version=")[0]
    _allowed(state, "Microsoft.Authorization/roleAssignments/read", scope)
    first = int(page or 0)
    listed = [
        each
        for each in state.get("assignments", ())
        if _within(each["scope"], scope) or _within(scope, each["scope"])
    ]
    nested = [
        {
            "id": each["id"],
            "name": each["name"],
            "properties": {name: each[name] for name in each.keys() - {"id", "name"}},
        }
        for each in listed[first : first + 2]
    ]
    more = {"nextLink": f"{url}&skip={first + 2}"} if len(listed) > first + 2 else {}
    return {"value": nested, **more}


def _locked(call: Call) -> str:
    kind, name = call.options["--resource-type"], call.options["--resource"]
    return f"{group_id(call.options['--resource-group'])}/providers/{kind}/{name}"


def _locks(state: State, call: Call) -> object:
    """``resource/_help.py``: "Includes locks in the associated group and subscription"."""
    scope = _locked(call)
    return [lock for lock in state.get("locks", ()) if _within(scope, lock["scope"])]


def _lock_create(state: State, call: Call) -> object:
    _allowed(state, "Microsoft.Authorization/locks/write", _locked(call))
    lock = {
        "name": call.options["--name"],
        "level": call.options["--lock-type"],
        "scope": _locked(call),
    }
    state.setdefault("locks", []).append(lock)
    return lock


def _providers(state: State, _: Call) -> object:
    """The names of those that are not registered: the one ``--query`` that is asked here."""
    scope = f"/subscriptions/{SUBSCRIPTION}"
    _allowed(state, "Microsoft.Resources/subscriptions/providers/read", scope)
    providers = state.get("providers", {}).items()
    return [name for name, registered in providers if registered != "Registered"]


def _provider_register(state: State, call: Call) -> None:
    """The action: terraform-provider-azurerm issue 24804."""
    name = call.options["--namespace"]
    _allowed(state, f"{name}/register/action", f"/subscriptions/{SUBSCRIPTION}")
    state["providers"][name] = "Registered"


def _namespaces(state: State, call: Call) -> object:
    return [
        {"name": name, "sku": namespace["sku"], "tags": namespace.get("tags")}
        for name, namespace in state.get("namespaces", {}).items()
        if namespace["group"] == call.options["--resource-group"]
    ]


def _queues(state: State, call: Call) -> object:
    return list(state["namespaces"][call.options["--namespace-name"]]["queues"].values())


def _queue_delete(state: State, call: Call) -> None:
    del state["namespaces"][call.options["--namespace-name"]]["queues"][call.options["--name"]]


def _within(scope: str, place: str) -> bool:
    return f"{scope}/".lower().startswith(f"{place}/".lower())


def _at(state: State, kind: str, resource: str) -> Iterator[Any]:
    return iter([each for each in state[kind] if each["id"] == resource])


def _signed_in(rule: Any) -> Any:
    """Without an account each command fails so: ``azure/cli/core/_profile.py``."""

    def signed_in(state: State, call: Call) -> object:
        if state.get("signed_out"):
            raise Refused("Please run 'az login' to setup account.")
        return rule(state, call)

    return signed_in


RULES: Rules = {
    f"az {words}": _signed_in(rule)
    for words, rule in {
        "group show": _group_show,
        "group create": _group_create,
        "tag update": _tag_update,
        "role assignment create": _assignment_create,
        "role assignment delete": _assignment_delete,
        "rest --method get": _rest,
        "lock list": _locks,
        "lock create": _lock_create,
        "provider list": _providers,
        "provider register": _provider_register,
        "servicebus namespace list": _namespaces,
        "servicebus queue list": _queues,
        "servicebus queue delete": _queue_delete,
    }.items()
}
