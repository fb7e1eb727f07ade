"""Takes away what the template no longer gives: rights and queues.

A deployment adds and changes, and removes nothing. The template says in its outputs which role
assignments (``SAS_ROLE_ASSIGNMENTS``) and queues (``SAS_QUEUES``) there should be.

1. Only role assignments whose description begins with ``sas: `` are ours, and only those in the
   resource group. Each that the template no longer gives is removed, at once.
2. Only queues that forward dead letters as the template does are ours. One that it no longer gives
   is removed if it is empty, and nobody used it for a day. The code before this release may still
   use it, and runs on until the next deployment. So the queue goes with a later one, and until
   then the functions keep their rights on it.
3. A queue with messages stays, and is named with its counts. Its messages are a person's matter.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sas.deploy.commands import CommandFailedError, az
from sas.deploy.owner import assignments, group_id, group_name
from sas.deploy.queues import read_list
from sas.domain.texts import visible

MARK = "sas: "
QUIET = timedelta(days=1)


def tidy(env: Mapping[str, str], *, now: datetime) -> None:
    """Remove what the outputs of the template in ``env`` do not name, and print each of it.

    Raises:
        CommandFailedError: Azure cannot be asked, or refuses for another reason than a lock.
    """
    granted, queues = _names(env, "SAS_ROLE_ASSIGNMENTS"), _names(env, "SAS_QUEUES")
    if not granted or not queues:
        return  # a template without these outputs gives no order to remove everything
    namespace = env["ServiceBus__fullyQualifiedNamespace"].partition(".")[0]
    of = ("--resource-group", group_name(env), "--namespace-name", namespace)
    present = az(env, "servicebus", "queue", "list", *of)
    end = read_list(Path())["deadLetterQueue"]
    ours = [queue for queue in present if queue.get("forwardDeadLetteredMessagesTo") == end]
    surplus = [queue for queue in ours if queue["name"].lower() not in queues]
    reasons = {queue["name"]: _reason(queue, now) for queue in surplus}
    staying = {name.lower() for name, reason in reasons.items() if reason}
    for assignment in _assignments(env):
        if assignment["name"].lower() not in granted and not _serves(env, assignment, staying):
            _revoke(env, assignment)
    for name, reason in reasons.items():
        if reason:
            print(f"The queue {name} is not in queues.json any more. It stays: {reason}")
        else:
            az(env, "servicebus", "queue", "delete", *of, "--name", name)
            print(f"Removed the empty queue {name}")


def _names(env: Mapping[str, str], output: str) -> set[str]:
    """Return the names in an output of the template. azd gives an array as JSON."""
    return {name.lower() for name in json.loads(env.get(output) or "[]") or ()}


def _reason(queue: Mapping[str, Any], now: datetime) -> str:
    """Return why a queue stays; an empty text if it can go."""
    counts = {kind: n for kind, n in (queue.get("countDetails") or {}).items() if n}
    if counts or queue.get("messageCount") != 0:  # no count is no zero
        shown = ", ".join(f"{kind} {n}" for kind, n in sorted(counts.items()))
        return f"it has messages ({shown or queue.get('messageCount')}). Read or move them first"
    used = datetime.fromisoformat(queue["accessedAt"])  # in the year 1 if never
    used = used.replace(tzinfo=used.tzinfo or UTC)
    if now - used < QUIET:
        return f"it was used at {used:%Y-%m-%d %H:%M} UTC. A deployment a day later removes it"
    return ""


def _assignments(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return our role assignments in the resource group and below it."""
    scope = group_id(env)
    return [
        assignment
        for assignment in assignments(env, scope)
        if (assignment["properties"].get("description") or "").startswith(MARK)
        and f"{assignment['properties']['scope']}/".lower().startswith(f"{scope}/".lower())
    ]


def _serves(env: Mapping[str, str], assignment: Mapping[str, Any], staying: set[str]) -> bool:
    """Return whether it gives the functions a right on a queue that stays for now."""
    properties = assignment["properties"]
    parent, _, queue = properties["scope"].lower().rpartition("/")
    functions = env.get("SAS_IDENTITY_PRINCIPAL_ID", "").lower()
    return (
        properties["principalId"].lower() == functions
        and parent.endswith("/queues")
        and queue in staying
    )


def _revoke(env: Mapping[str, str], assignment: Mapping[str, Any]) -> None:
    """Delete a role assignment. A lock on the resource forbids it, and then an owner must."""
    properties = assignment["properties"]
    place = properties["scope"].rpartition("/")[2]
    description = visible(str(properties["description"]))
    text = f"the right of {properties['principalId']} on {place} ({description})"
    command = ("role", "assignment", "delete", "--ids", assignment["id"])
    try:
        az(env, *command)
    except CommandFailedError as error:
        if "ScopeLocked" in error.text:
            cause = "A lock forbids it (`sas azd owner` puts the lock back)"
        elif "AuthorizationFailed" in error.text:
            cause = "Azure refused it to you"
        else:
            raise
        print(f"To remove: {text}. {cause}. An owner runs\n    az {shlex.join(command)}")
    else:
        print(f"Removed {text}")
