"""The tables of a comparison, as Markdown."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from lab.benchmarks.peers.drivers import QUIET_S
from lab.benchmarks.peers.measure import (
    IN_FLIGHT,
    RECOVERY_IN_FLIGHT,
    RECOVERY_STEP_S,
    REFUSED,
    Recovery,
    Speed,
)
from lab.benchmarks.peers.rigs import RIGS

OURS = "ours"


def speed_table(rounds: Mapping[str, Sequence[Sequence[Speed]]]) -> list[str]:
    """Return the table of speeds: medians over rounds; in brackets the ratio to ours."""
    heads = [f"{count} in flight" for count in IN_FLIGHT]
    lines = [
        "| orders/s (times ours) | " + " | ".join(heads) + " | p50 at 1, ms | CPU ms an order at "
        f"{IN_FLIGHT[-1]}: workers, servers | rounds |",
        "|---|" + "---|" * (len(heads) + 3),
    ]
    ours = _medians(rounds[OURS]) if rounds.get(OURS) else {}
    for name in sorted(rounds, key=lambda one: -_medians(rounds[one])[f"rate {IN_FLIGHT[-1]}"]):
        own = _medians(rounds[name])
        cells = [_with_ratio(own, ours, f"rate {count}", ".1f") for count in IN_FLIGHT]
        cells.append(_with_ratio(own, ours, "p50", ".0f"))
        cells.append(f"{own['workers']:.1f}, {own['servers']:.1f}")
        title = f"**{RIGS[name].title}**" if name == OURS else RIGS[name].title
        lines.append(f"| {title} | " + " | ".join(cells) + f" | {len(rounds[name])} |")
    return lines


def recovery_table(found: Mapping[str, Recovery]) -> list[str]:
    """Return the table of recoveries."""
    heads = "orders, left|left at the rate before, s|until the last ended, s|lost|torn"
    heads += "|doubled effects|repeated calls|undone"
    lines = [f"|`kill -9` of the workers at half time|{heads}|", "|---|" + "---|" * 8]
    for name in sorted(found, key=lambda one: found[one].seconds):
        one = found[name]
        lines.append(
            f"| {RIGS[name].title} | {one.orders}, {one.left} | {one.due_s:.1f} | "
            f"{one.seconds:.1f} | {one.lost} | {len(one.torn)} | {one.doubled} | {one.repeated} | "
            f"{one.undone} |"
        )
    return lines


def whole(
    rounds: Mapping[str, Sequence[Sequence[Speed]]],
    recovered: Mapping[str, Recovery],
    missing: Mapping[str, str],
) -> str:
    """Return the whole report."""
    now = datetime.now(UTC)
    lines = ["# Results of `make bench-peers`", ""]
    lines.append(
        f"{now.day} {now:%B %Y}, {os.cpu_count()} cores, Python {platform.python_version()}, load "
        f"average {os.getloadavg()[0]:.1f} at the end. See [README](README.md) for what is durable "
        "where, and for the limits."
    )
    if any(rounds.values()):
        lines += ["", *speed_table({name: found for name, found in rounds.items() if found})]
    if recovered:
        lines += ["", *recovery_table(recovered), ""]
        lines.append(
            f"{RECOVERY_IN_FLIGHT} in flight, {RECOVERY_STEP_S:.0f} s allowed a step, "
            f"{REFUSED:.0%} of calls refused for good. *Torn*: some, but not all or none, of an "
            "order's effects are in force at its end. *Lost*: no end, and none of another order, "
            f"for {QUIET_S:.0f} s."
        )
    for name, reason in missing.items():
        lines += ["", f"**{RIGS[name].title} was left out**: {reason}"]
    return "\n".join(lines) + "\n"


def rate_of(found: Sequence[Sequence[Speed]], in_flight: int) -> float:
    """Return the median rate at one number of orders in flight; 0 if it was not measured."""
    return _medians(found)[f"rate {in_flight}"] if found else 0.0


def _medians(found: Sequence[Sequence[Speed]]) -> dict[str, float]:
    flat = [one for visit in found for one in visit]
    medians = {
        f"rate {count}": statistics.median(one.rate for one in flat if one.in_flight == count)
        for count in IN_FLIGHT
    }
    medians["p50"] = statistics.median(one.p50_ms for one in flat if one.in_flight == 1)
    busiest = [one for one in flat if one.in_flight == IN_FLIGHT[-1]]
    for part in ("workers", "servers"):
        medians[part] = statistics.median(one.cpu_ms[part] for one in busiest)
    return medians


def _with_ratio(own: Mapping[str, float], ours: Mapping[str, float], name: str, form: str) -> str:
    ratio = f" ({own[name] / ours[name]:.2f})" if ours else ""
    return f"{own[name]:{form}}{ratio}"
