"""The verdict of the demo, which tests with kills use too, sees each kind of error."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples.demo.tally import Tally
from samples.demo.verdict import Verdict, ids_of, judge
from samples.services.ledger import EffectView, LedgerView
from sas.domain.ids import idempotency_key
from sas.domain.messages import Notify
from sas.testing.store import MemoryStore
from tests.orders.operating_story import Story, night_before

SEEDS = ("reserve-stock", "take-payment", "ship")


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    return night_before(monkeypatch, tmp_path)


def ledger(*steps: str, doubled: bool = False) -> dict[str, LedgerView]:
    effects: list[EffectView] = [
        {
            "order_id": "O-1",
            "key": idempotency_key("O-1", step, 0),
            "number": f"N-{step}",
            "at": "2026-01-01T00:00:01+00:00",
            "undone_at": None,
            "replays": 0,
        }
        for step in steps
    ]
    lists = {"effects": effects, "doubled": ["O-1"] if doubled else []}
    return {"stock": {"service": "stock", "calls": 3, "faults": {}, **lists}}  # type: ignore[typeddict-item]


async def verdict_of(
    story: Story, *, effects: tuple[str, ...] = SEEDS, forget: int = 0, doubled: bool = False
) -> Verdict:
    """Return the verdict on the one order of the story."""
    store = story.system.store
    ids = sorted(ids_of(Notify, "O-1", await store.journal("O-1")))
    tally = Tally(orders=1)
    tally.notification_ids.update(ids[forget:])
    return await judge(store, ["O-1"], tally, ledger(*effects, doubled=doubled))


async def test_a_run_with_something_missing_unfinished_or_doubled_fails(story: Story) -> None:
    await story.submit("O-1")
    unfinished = await verdict_of(story, effects=())
    assert (unfinished.holds, unfinished.unfinished) == (False, ["O-1"])
    await story.system.drain()
    whole = await verdict_of(story)
    assert (whole.holds, whole.effects_expected) == (True, 3)
    assert whole.notifications_expected > 1
    assert not (await verdict_of(story, forget=1)).holds
    assert not (await verdict_of(story, effects=SEEDS[:2])).holds
    assert not (await verdict_of(story, doubled=True)).holds
    lost = await judge(MemoryStore(), ["O-1"], Tally(orders=1), ledger())
    assert (lost.holds, lost.unfinished) == (False, ["O-1"])
