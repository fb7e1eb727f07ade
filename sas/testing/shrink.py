"""Make a plan that fails shorter, until nothing can be left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sas.testing.plan import Chance, Plan, Press, Submit

PLAYS_MAX = 400


def shrunk(plan: Plan, fails: Callable[[Plan], bool], plays_max: int = PLAYS_MAX) -> Plan:
    """Return the shortest plan found that still fails. ``fails`` plays a plan.

    First halves of the items are left out, then quarters, and at last single items. Then instances
    are left out, and the shares of chance are halved. Every attempt plays the same seed.
    """
    plays_left = plays_max

    def still(candidate: Plan) -> bool:
        nonlocal plays_left
        plays_left -= 1
        return plays_left >= 0 and bool(candidate.of(Submit)) and fails(candidate)

    size = max(len(plan.items) // 2, 1)
    while size:
        at, shorter = 0, False
        while at < len(plan.items):
            rest = plan.items[:at] + plan.items[at + size :]
            candidate = replace(plan, items=_consistent(rest))
            if still(candidate):
                plan, shorter = candidate, True
            else:
                at += size
        if size == 1 and not shorter:
            break
        size = size // 2 if size > 1 else (1 if shorter else 0)
    while plan.instances > 1 and still(candidate := replace(plan, instances=plan.instances - 1)):
        plan = candidate
    return _calmer(plan, still)


def _calmer(plan: Plan, still: Callable[[Plan], bool]) -> Plan:
    for at, item in enumerate(plan.items):
        while isinstance(item, Chance) and item.share > 0.001:
            item = replace(item, share=round(item.share / 2, 5))  # noqa: PLW2901
            candidate = replace(plan, items=(*plan.items[:at], item, *plan.items[at + 1 :]))
            if not still(candidate):
                break
            plan = candidate
    return plan


def _consistent(items: tuple[object, ...]) -> tuple:  # type: ignore[type-arg]
    """Leave out the commands whose orders were left out."""
    order_ids = {item.order_id for item in items if isinstance(item, Submit)}
    return tuple(
        item for item in items if not isinstance(item, Press) or item.order_id in order_ids
    )
