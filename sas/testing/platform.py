"""The platform as it is deployed: the rules of the queues, and of the host."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sas.deploy.queues import read_list, seconds
from sas.domain.queues import Queues
from sas.testing.bus import DEAD_LETTERS, QueueRules

QUEUES = Queues()
REPLIES_TO = "responses-web-shop"
STRANGE_QUEUE = "of-another-system"
"""A queue of another system that forwards its dead letters to ours."""
_WINDOW = "duplicateDetectionHistoryTimeWindow"
_UNUSABLE = (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError)
_DAYS, _MINUTE = timedelta(days=14), timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class HostRules:
    """The settings of host.json. ``calls_max`` is for each function of each instance."""

    function_timeout: timedelta = timedelta(minutes=10)
    lock_renewal_max: timedelta = timedelta(minutes=10)
    calls_max: int = 16


class PlatformFileError(ValueError):
    """A file of the project cannot be used. The message names it and says what is wrong."""


def queue_rules(project: Path, agents: Iterable[str]) -> dict[str, QueueRules]:
    """Return the rules of every queue, from ``infra/queues.json`` of a project.

    A project without this file gets the rules that ``sas infra`` would write.

    Raises:
        PlatformFileError: the file is not a list of queues.
    """
    names = {
        QUEUES.alerts: "kept",
        QUEUES.rejected: "kept",
        QUEUES.dead_letters: "deadLetters",
        REPLIES_TO: "response",
    }
    for urgent in ("", "-urgent"):
        names |= {QUEUES.orders + urgent: "incoming", QUEUES.scheduler + urgent: "internal"}
        names |= {QUEUES.agent(agent) + urgent: "request" for agent in agents}
    path = project / "infra" / "queues.json"
    try:
        queue_file = read_list(project)
        kinds = {name: dict(kind["properties"]) for name, kind in queue_file["kinds"].items()}
        kind_of = {queue["name"]: queue["kind"] for queue in queue_file.get("queues", [])}
        rules = {
            name: _rules(
                kinds.get(kind_of.get(name, kind), {}), forwards=name != QUEUES.dead_letters
            )
            for name, kind in names.items()
        }
    except _UNUSABLE as error:
        raise PlatformFileError(f"{path} is not a list of queues: {error!r}") from None
    strange = QueueRules(forwards_dead_letters_to=QUEUES.dead_letters, deliveries_max=1)
    return rules | {QUEUES.dead_letters + DEAD_LETTERS: QueueRules(), STRANGE_QUEUE: strange}


def host_rules(project: Path) -> HostRules:
    """Return the settings of ``host.json`` of a project; the defaults if it has none.

    Raises:
        PlatformFileError: the file cannot be read.
    """
    path = project / "host.json"
    if not path.exists():
        return HostRules()
    try:
        host = json.loads(path.read_text(encoding="utf-8"))
        bus = host.get("extensions", {}).get("serviceBus", {})
        return HostRules(
            function_timeout=_clock_time(host.get("functionTimeout", "00:10:00")),
            lock_renewal_max=_clock_time(bus.get("maxAutoLockRenewalDuration", "00:10:00")),
            calls_max=int(bus.get("maxConcurrentCalls", 16)),
        )
    except _UNUSABLE as error:
        raise PlatformFileError(f"{path} cannot be read: {error}") from None


def _rules(properties: dict[str, object], *, forwards: bool) -> QueueRules:
    def time(name: str, default: timedelta) -> timedelta:
        return timedelta(seconds=seconds(str(properties[name]))) if name in properties else default

    detects = bool(properties.get("requiresDuplicateDetection", False))
    return QueueRules(
        lock_time=time("lockDuration", _MINUTE),
        deliveries_max=int(str(properties.get("maxDeliveryCount", 5))),
        duplicate_window=time(_WINDOW, timedelta(minutes=10)) if detects else None,
        time_to_live=time("defaultMessageTimeToLive", _DAYS),
        dead_letters_expired=bool(properties.get("deadLetteringOnMessageExpiration", True)),
        forwards_dead_letters_to=QUEUES.dead_letters if forwards else None,
    )


def _clock_time(text: str) -> timedelta:
    hours, minutes, seconds = map(int, text.split(":"))
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)
