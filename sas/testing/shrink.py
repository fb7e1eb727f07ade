"""Shorten a plan that fails, until nothing can be left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sas.testing.plan import Chance, Item, Plan, Press, Submit

PLAYS_MAX = 400


def shrunk(plan: Plan, fails: Callable[[Plan], bool], plays_max: int = PLAYS_MAX) -> Plan:
    """Return the shortest plan that still fails, after at most ``plays_max`` plays.

    ``fails`` plays a plan and says whether it fails. First halves of the items are left out, then
    quarters, and at last single items. Then instances are left out, and the shares of faults by
    chance are halved. Every attempt plays the same seed.
    """
    plays_left = plays_max

    def still_fails(candidate: Plan) -> bool:
        nonlocal plays_left
        plays_left -= 1
        return plays_left >= 0 and bool(candidate.of(Submit)) and fails(candidate)

    size = max(len(plan.items) // 2, 1)
    while True:
        start, is_shorter = 0, False
        while start < len(plan.items):
            items = plan.items[:start] + plan.items[start + size :]
            candidate = replace(plan, items=_consistent(items))
            if still_fails(candidate):
                plan, is_shorter = candidate, True
            else:
                start += size
        if size > 1:
            size //= 2
        elif not is_shorter:
            break
    while plan.instances > 1:
        candidate = replace(plan, instances=plan.instances - 1)
        if not still_fails(candidate):
            break
        plan = candidate
    return _calmer(plan, still_fails)


def _calmer(plan: Plan, still_fails: Callable[[Plan], bool]) -> Plan:
    for index, item in enumerate(plan.items):
        while isinstance(item, Chance) and item.share > 0.001:
            item = replace(item, share=round(item.share / 2, 5))  # noqa: PLW2901
            candidate = replace(plan, items=(*plan.items[:index], item, *plan.items[index + 1 :]))
            if not still_fails(candidate):
                break
            plan = candidate
    return plan


def _consistent(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return the items without the commands whose orders were left out."""
    order_ids = {item.order_id for item in items if isinstance(item, Submit)}
    return tuple(
        item for item in items if not isinstance(item, Press) or item.order_id in order_ids
    )
