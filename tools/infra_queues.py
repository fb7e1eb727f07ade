"""Checks that ``infra/queues.json`` agrees with every other place that names queues."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

EMULATOR_TTL_MAX_S = 3600
EMULATOR_WINDOW_MAX_S = 300
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")


def read_list(infra: Path) -> dict[str, Any]:
    """Return the list of queues."""
    return dict(json.loads((infra / "queues.json").read_text()))


def applications(infra: Path) -> list[str]:
    """Return the names of the applications that the parameters file sets up."""
    parameters = json.loads((infra / "main.parameters.json").read_text())["parameters"]
    return [str(application["name"]) for application in parameters["applications"]["value"]]


def bound_applications(infra: Path) -> list[str]:
    """Return the names of the applications that have queues of orders of their own."""
    parameters = json.loads((infra / "main.parameters.json").read_text())["parameters"]
    applications_listed = parameters["applications"]["value"]
    return [
        str(application["name"]) for application in applications_listed if application.get("bound")
    ]


def all_queues(
    queue_list: Mapping[str, Any], names: Iterable[str], bound: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return every queue's properties by its name, as Bicep makes them.

    ``names`` are the applications, ``bound`` those of them with queues of orders of their own.
    """
    end = queue_list["deadLetterQueue"]
    kinds = {queue["name"]: queue["kind"] for queue in queue_list["queues"]}
    kinds |= {queue_list["responsePrefix"] + name: "response" for name in names}
    order_queues = [
        f"{queue_list['ownOrdersPrefix']}{name}{lane}" for name in bound for lane in ("", "-urgent")
    ]
    kinds |= dict.fromkeys(order_queues, "incoming")
    queues = {
        name: {**queue_list["kinds"][kind]["properties"], "forwardDeadLetteredMessagesTo": end}
        for name, kind in kinds.items()
    }
    queues[end] = dict(queue_list["kinds"]["deadLetters"]["properties"])
    return queues


def emulator_queues(infra: Path) -> dict[str, dict[str, Any]]:
    """Return the emulator's queues by name."""
    content = json.loads((infra / "emulator" / "Config.json").read_text())
    queues = content["UserConfig"]["Namespaces"][0]["Queues"]
    return {queue["Name"]: queue["Properties"] for queue in queues}


def differences(azure: Mapping[str, Any], emulator: Mapping[str, Any]) -> list[str]:
    """Return how a queue of the emulator differs from Azure's within the emulator's bounds."""
    ttl = min(seconds(azure["defaultMessageTimeToLive"]), EMULATOR_TTL_MAX_S)
    window = min(seconds(azure["duplicateDetectionHistoryTimeWindow"]), EMULATOR_WINDOW_MAX_S)
    pairs: list[tuple[str, object, object]] = [
        ("time to live", ttl, seconds(emulator["DefaultMessageTimeToLive"])),
        ("window", window, seconds(emulator["DuplicateDetectionHistoryTimeWindow"])),
        ("lock", seconds(azure["lockDuration"]), seconds(emulator["LockDuration"])),
    ]
    for theirs, default in {
        "MaxDeliveryCount": None,
        "RequiresDuplicateDetection": None,
        "RequiresSession": None,
        "DeadLetteringOnMessageExpiration": None,
        "ForwardDeadLetteredMessagesTo": "",
    }.items():
        ours = theirs[0].lower() + theirs[1:]
        pairs.append((theirs, azure.get(ours, default), emulator[theirs]))
    return [f"{name}: {a!r} in Azure, {b!r} in the emulator" for name, a, b in pairs if a != b]


def seconds(duration: str) -> int:
    """Return the seconds of an ISO 8601 duration of days, hours, minutes and seconds.

    Raises:
        ValueError: the text is no such duration.
    """
    match = _DURATION.fullmatch(duration)
    if match is None or duration in {"P", "PT"}:
        raise ValueError(f"{duration!r} is not a duration such as PT1M or P14D")
    days, hours, minutes, remainder = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + remainder


def inconsistent(queue_list: Mapping[str, Any]) -> list[str]:
    """Return the places where the list contradicts itself."""
    names = {queue["name"] for queue in queue_list["queues"]} | {queue_list["deadLetterQueue"]}
    problems = [
        f"access.{right} names {name}, which is not a queue"
        for right, granted in queue_list["access"].items()
        for name in granted
        if name not in names
    ]
    problems += [
        f"queue {queue['name']} is of no kind: {queue['kind']}"
        for queue in queue_list["queues"]
        if queue["kind"] not in queue_list["kinds"]
    ]
    return problems + _policy(queue_list)


def _policy(queue_list: Mapping[str, Any]) -> list[str]:
    """Return each kind of queue whose settings break our rules."""
    problems = []
    for name, kind in queue_list["kinds"].items():
        properties = kind["properties"]
        if properties["requiresDuplicateDetection"] is (name in {"incoming", "deadLetters"}):
            problems.append(f"{name}: duplicate detection is wrong")
        if properties["deadLetteringOnMessageExpiration"] is (name == "request"):
            problems.append(f"{name}: dead-lettering on expiration is wrong")
        weeks = seconds(properties["defaultMessageTimeToLive"]) >= 7 * 86_400
        if name in {"response", "kept"} and not weeks:
            problems.append(f"{name}: messages for people need a time to live of at least a week")
        if "forwardDeadLetteredMessagesTo" in properties:
            problems.append(f"{name}: Bicep adds the forwarding, and never to the last queue")
    return problems
