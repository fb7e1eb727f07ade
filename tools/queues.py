"""Changes the list of queues, and the files that are made from it: ``python -m tools.queues``.

python -m tools.queues                         rewrite infra/emulator/Config.json from the list
python -m tools.queues --agents hotel airline  these are the agents now
python -m tools.queues --applications desk     these are the applications now
python -m tools.queues --applications desk --bound desk     desk has queues of orders of its own
python -m tools.queues --settings TRIPS_URL    these are the settings of the business now
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.infra_queues import (
    EMULATOR_TTL_MAX_S,
    EMULATOR_WINDOW_MAX_S,
    all_queues,
    applications,
    bound_applications,
    read_list,
    seconds,
)

INFRA = Path(__file__).parents[1] / "infra"
QUEUES_MAX = 50
URGENT_SUFFIX = "-urgent"
_SETTING = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def set_agents(queue_list: dict[str, Any], agents: list[str]) -> None:
    """Make these the agents: their request queues, and who may send and receive there."""
    old = {queue["name"] for queue in queue_list["queues"] if queue["kind"] == "request"}
    names = [f"agent-{agent}{lane}" for agent in agents for lane in ("", URGENT_SUFFIX)]
    place = next(n for n, queue in enumerate(queue_list["queues"]) if queue["name"] in old)
    rest = [queue for queue in queue_list["queues"] if queue["name"] not in old]
    agent_queues = [{"name": name, "kind": "request"} for name in names]
    queue_list["queues"] = [*rest[:place], *agent_queues, *rest[place:]]
    for granted in queue_list["access"].values():
        if old & set(granted):
            place = next(n for n, name in enumerate(granted) if name in old)
            others = [name for name in granted if name not in old]
            granted[:] = [*others[:place], *names, *others[place:]]


def set_applications(parameters: dict[str, Any], names: list[str], bound: list[str]) -> None:
    """Make these the applications, each with the setting that names its principal."""
    parameters["parameters"]["applications"]["value"] = [
        {
            "name": name,
            "principalId": f"${{SAS_PRINCIPAL_{name.upper().replace('-', '_')}=}}",
            **({"bound": True} if name in bound else {}),
        }
        for name in names
    ]


def set_settings(parameters: dict[str, Any], names: list[str]) -> None:
    """Make these the settings of the business, each given by the variable of its name."""
    parameters["parameters"]["businessSettings"]["value"] = {name: f"${{{name}}}" for name in names}


def emulator_config(
    queue_list: dict[str, Any], names: list[str], bound: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the emulator's Config.json: the same queues, within the emulator's bounds."""
    queues = [
        {"Name": name, "Properties": _emulated(properties)}
        for name, properties in all_queues(queue_list, names, bound).items()
    ]
    if len(queues) > QUEUES_MAX:
        raise ValueError(f"{len(queues)} queues: the emulator takes {QUEUES_MAX}")
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


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(INFRA.parent)}")


def main(argv: list[str] | None = None) -> int:
    """Rewrite the files that the options name, and always the emulator's file."""
    parser = argparse.ArgumentParser(prog="python -m tools.queues", description=__doc__)
    parser.add_argument("--agents", nargs="+", metavar="NAME", help="the agents, all of them")
    parser.add_argument("--applications", nargs="+", metavar="NAME", help="all applications")
    parser.add_argument(
        "--bound", nargs="+", default=[], metavar="NAME", help="those with queues of orders"
    )
    parser.add_argument("--settings", nargs="+", metavar="NAME", help="of the business, all")
    options = parser.parse_args(argv)
    for name in options.settings or []:
        if not _SETTING.fullmatch(name) or name.startswith("SAS_QUEUE_"):
            parser.error(f"{name!r}: use upper-case letters, digits and _ between them")
    for name in [*(options.agents or []), *(options.applications or [])]:
        if not _NAME.fullmatch(name):
            parser.error(f"{name!r}: use lower-case letters, digits and - between them")
    if not set(options.bound) <= set(options.applications or []):
        parser.error("--bound names applications that --applications names too")
    queue_list = read_list(INFRA)
    if options.agents:
        set_agents(queue_list, options.agents)
        _write(INFRA / "queues.json", queue_list)
    if options.applications or options.settings:
        parameters = json.loads((INFRA / "main.parameters.json").read_text(encoding="utf-8"))
        if options.applications:
            set_applications(parameters, options.applications, options.bound)
        if options.settings:
            set_settings(parameters, options.settings)
        _write(INFRA / "main.parameters.json", parameters)
    _write(
        INFRA / "emulator" / "Config.json",
        emulator_config(queue_list, applications(INFRA), bound_applications(INFRA)),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
