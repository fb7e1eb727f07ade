"""What the desk knows of all orders, read in the background from the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sas.desk import charts, listing, watch
from sas.desk.content import compact, indented
from sas.desk.listing import SORTS
from sas.desk.watch import Watch
from sas.operate.rows import OrderRow
from tests.unit import actors_kit
from tests.unit.actors_kit import CARE, Kit, break_row, fail, kit, night, submit


def watching(system: Kit) -> Watch:
    return Watch(system.store, system.clock.now)


async def read_whole(watcher: Watch) -> list[list[str]]:
    """Look until the whole past is read; return the finished orders after each look."""
    snapshots: list[list[str]] = []
    for _ in range(1000):
        if watcher.picture.whole:
            return snapshots
        await watcher.look()
        snapshots.append(list(watcher.picture.finished))
    raise AssertionError("the past is never read to its end")


async def test_the_past_is_read_part_by_part_and_each_order_is_known_once() -> None:
    system = kit(CARE)
    for name, pause in (("week", 6 * 86_400), ("day", 80_000), ("hours", 7000), ("now", 1)):
        await submit(system, name)
        await system.later(pause)
    watcher = watching(system)
    snapshots = await read_whole(watcher)
    assert snapshots[0] == ["now"]
    assert snapshots[-1] == ["week", "day", "hours", "now"]  # the newest are last
    await submit(system, "later")
    await watcher.look()
    assert list(watcher.picture.finished)[-2:] == ["now", "later"]


async def test_few_orders_are_loaded_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SHOWN_MAX", 1)
    system = await night()
    await system.submit(actors_kit.order("10252", workflow="care"), "m-10252")
    load, loaded = system.store.load, set()

    async def counted(order_id: str) -> object:
        loaded.add(order_id)
        return await load(order_id)

    system.store.load = counted  # type: ignore[assignment]
    watcher = watching(system)
    await watcher.look()
    picture = watcher.picture
    assert not loaded
    assert picture.status is not None
    assert [group.count for group in picture.status.failures] == [2, 1]
    assert [row.order_id for row in picture.in_error] == ["10248", "10249", "10250"]
    assert [row.order_id for row in picture.under_way] == ["10252"]
    (row,) = await watcher.loaded(picture.under_way)
    assert (row.process_state, row.workflow) == ("Pending", "care")


async def test_an_order_whose_rows_are_broken_hides_no_others() -> None:
    system = await night()
    reason = break_row(system, "10248")
    rows = [OrderRow(order_id=order_id, process_state=None) for order_id in ("10248", "10251")]
    broken_row, row = await watching(system).loaded(rows)
    assert broken_row.why == f"it cannot be read: {reason}"
    assert row.process_state == "Processed"


async def test_the_charts_count_each_minute_and_say_it_in_words() -> None:
    system = kit(CARE)
    await submit(system, "before-the-hour")
    await system.later(7200)
    for minute in range(3):
        await submit(system, f"A-{minute}")
        await system.later(60)
    await fail(system, "B", agent="payment", code="x", message="y")
    watcher = watching(system)
    await read_whole(watcher)
    rates, times = charts.of(watcher.picture)
    assert rates.label == "In the last hour: 3 completed, 0 undone, 1 failed."
    assert [bar.kind for bar in rates.bars] == ["completed"] * 3 + ["failed"]
    assert all(0 <= bar.y <= bar.y + bar.height <= charts.HEIGHT + 0.01 for bar in rates.bars)
    assert times.label.startswith("In the last hour: half of the completed orders took")
    empty, none = charts.of(watching(kit(CARE)).picture)
    assert (empty.bars, none.label) == ([], "No order completed in the last hour.")


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("backwards", [False, True])
async def test_pages_together_hold_each_order_once_in_the_order_of_the_sort(
    monkeypatch: pytest.MonkeyPatch, sort: str, backwards: bool
) -> None:
    monkeypatch.setattr(listing, "PER_PAGE", 3)
    system = await night()
    for number in range(4):
        await submit(system, f"Z-{number}")
    await system.submit(actors_kit.order("under-way", workflow="care"), "m-u")
    watcher = watching(system)
    await read_whole(watcher)
    counts = {"all": 9, "finished": 5, "error": 3, "processed": 5, "under-way": 1}
    for state, count in counts.items():
        query = listing.Query(state=state, sort=f"-{sort}" if backwards else sort)
        pages = listing.list_page(watcher.picture, query).pages
        rows = [
            row
            for page in range(1, pages + 1)
            for row in listing.list_page(watcher.picture, replace(query, page=page)).rows
        ]
        keys = list(map(SORTS[sort], rows))
        assert keys == sorted(keys, reverse=backwards)
        assert len({row.order_id for row in rows}) == len(rows) == count


@pytest.mark.parametrize(
    "text",
    [
        '{"a":0.10000000000000000001,"n":123456789012345678901234567890}',
        '{"card":{"number":"AAA"},"lines":[{"note":{"text":"BBB"}},{},[]]}',
        '{"quoted":"{\\"card\\":\\"no\\"}","space":"a , b : [c]"}',
        '"a text"',
        "[]",
        "null",
    ],
)
def test_content_that_is_shown_and_edited_comes_back_as_it_was(text: str) -> None:
    assert compact(indented(text)) == text
