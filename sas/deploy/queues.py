"""The list of queues (``infra/queues.json``), and what follows from it for one application.

Bicep creates the queues from this list and grants access by it. The emulator's ``Config.json`` has
the same queues, with times cut to the emulator's bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sas.distribution import files
from sas.domain.workflow import SMOKE

LIST = "infra/queues.json"
EMULATOR_QUEUES_MAX = 50
EMULATOR_TTL_MAX_S = 3600
EMULATOR_WINDOW_MAX_S = 300
LANES = ("", "-urgent")
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_SETTING = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an application needs of its platform.

    ``agents`` and ``settings`` are those of its own: each agent has a request queue, each setting a
    variable of the deployment. Each of ``applications`` has a response queue, and those of them in
    ``bound`` also send their orders to queues of their own.

    Raises:
        ValueError: something cannot be the name of an agent, an application or a setting.
    """

    agents: Sequence[str]
    applications: Sequence[str]
    bound: Sequence[str]
    settings: Sequence[str]

    def __post_init__(self) -> None:
        """Check the names."""
        for name in (*self.agents, *self.applications):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r}: use lower-case letters, digits and - between them")
        if SMOKE.name in self.applications:
            raise ValueError(
                f"applications has {SMOKE.name!r}, the name of the test after a deployment"
            )
        for name in self.settings:
            if not _SETTING.fullmatch(name) or name.startswith("SAS_QUEUE_"):
                raise ValueError(f"{name!r}: use upper-case letters, digits and _ between them")
        for name in self.bound:
            if name not in self.applications:
                raise ValueError(f"bound names {name!r}, which is none of applications")


def read_list(project: Path) -> dict[str, Any]:
    """Return the list of queues of a project; without one, the list that a deployment would get."""
    path = project / LIST
    source = path if path.is_file() else files() / LIST
    return dict(json.loads(source.read_text(encoding="utf-8")))


def with_agents(listed: dict[str, Any], agents: Sequence[str]) -> dict[str, Any]:
    """Return the list with the request queues of these agents, and of no other.

    The functions may send to these queues and receive from them.
    """
    former = {queue["name"] for queue in listed["queues"] if queue["kind"] == "request"}
    names = [f"agent-{agent}{lane}" for agent in agents for lane in LANES]
    queues = {queue["name"]: queue for queue in listed["queues"]}
    requests = {name: {"name": name, "kind": "request"} for name in names}
    return {
        **listed,
        "queues": [(queues | requests)[name] for name in _in_place(list(queues), former, names)],
        "access": {
            right: _in_place(granted, former, names) if former & set(granted) else granted
            for right, granted in listed["access"].items()
        },
    }


def _in_place(names: list[str], former: set[str], new: list[str]) -> list[str]:
    """Return the names with the new ones in the place of the first former one."""
    place = next((n for n, name in enumerate(names) if name in former), len(names))
    others = [name for name in names if name not in former]
    return [*others[:place], *new, *others[place:]]


def all_queues(
    listed: Mapping[str, Any], applications: Iterable[str], bound: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return every queue's properties by its name, as Bicep makes them."""
    end = listed["deadLetterQueue"]
    kinds = {queue["name"]: queue["kind"] for queue in listed["queues"]}
    kinds |= {listed["responsePrefix"] + name: "response" for name in applications}
    kinds |= {f"{listed['ownOrdersPrefix']}{n}{lane}": "incoming" for n in bound for lane in LANES}
    queues = {
        name: {**listed["kinds"][kind]["properties"], "forwardDeadLetteredMessagesTo": end}
        for name, kind in kinds.items()
    }
    queues[end] = dict(listed["kinds"]["deadLetters"]["properties"])
    return queues


def emulator_config(
    listed: Mapping[str, Any], applications: Iterable[str], bound: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the emulator's Config.json: the same queues, within the emulator's bounds.

    Raises:
        ValueError: there are more queues than the emulator takes.
    """
    queues = [
        {"Name": name, "Properties": _emulated(properties)}
        for name, properties in all_queues(listed, applications, bound).items()
    ]
    if len(queues) > EMULATOR_QUEUES_MAX:
        raise ValueError(f"{len(queues)} queues: the emulator takes {EMULATOR_QUEUES_MAX}")
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": []}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


def _emulated(properties: dict[str, Any]) -> dict[str, Any]:
    ttl = min(seconds(properties["defaultMessageTimeToLive"]), EMULATOR_TTL_MAX_S)
    window = min(seconds(properties["duplicateDetectionHistoryTimeWindow"]), EMULATOR_WINDOW_MAX_S)
    return {
        "DeadLetteringOnMessageExpiration": properties["deadLetteringOnMessageExpiration"],
        "DefaultMessageTimeToLive": _duration(ttl),
        "DuplicateDetectionHistoryTimeWindow": _duration(window),
        "ForwardDeadLetteredMessagesTo": properties.get("forwardDeadLetteredMessagesTo", ""),
        "ForwardTo": "",
        "LockDuration": properties["lockDuration"],
        "MaxDeliveryCount": properties["maxDeliveryCount"],
        "RequiresDuplicateDetection": properties["requiresDuplicateDetection"],
        "RequiresSession": properties["requiresSession"],
    }


def _duration(total: int) -> str:
    hours, minutes = divmod(total // 60, 60)
    return f"PT{hours}H" if hours and not minutes else f"PT{total // 60}M"


def seconds(duration: str) -> int:
    """Return the seconds of an ISO 8601 duration of days, hours, minutes and seconds.

    Raises:
        ValueError: the text is no such duration.
    """
    match = _DURATION.fullmatch(duration)
    if match is None or duration in {"P", "PT"}:
        raise ValueError(f"{duration!r} is not a duration such as PT1M or P14D")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest
