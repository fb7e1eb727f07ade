"""What the desk knows of all orders, read in the background from the store."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sas.desk import charts, listing, rows, watch
from sas.desk.content import compact, indented
from sas.desk.rows import SORTS, Row
from sas.desk.watch import Watch
from sas.domain.order import OrderState
from sas.ports import StoreUnavailableError
from sas.testing.store import StoreFault
from tests.unit import actors_kit
from tests.unit.actors_kit import CARE, Kit, fail, kit, night, submit


def ended(watcher: Watch) -> list[str]:
    return [row.order_id for block in watcher.picture.blocks for row in block.rows]


def watching(system: Kit) -> Watch:
    return Watch(system.store, system.clock.now)


async def test_the_past_is_read_part_by_part_and_each_order_is_known_once() -> None:
    system = kit(CARE)
    for name, pause in (("week", 6 * 86_400), ("day", 80_000), ("hours", 7000), ("now", 1)):
        await submit(system, name)
        await system.later(pause)
    watcher = watching(system)
    snapshots = []
    while not watcher.picture.whole:
        await watcher.look()
        snapshots.append(ended(watcher))
    assert snapshots[0] == ["now"]
    assert snapshots[-1] == ["week", "day", "hours", "now"]  # the newest are last
    await submit(system, "later")
    await watcher.look()
    assert ended(watcher)[-2:] == ["now", "later"]
    assert watcher.picture.counts[OrderState.PROCESSED] == 5


async def test_an_order_is_loaded_once_and_again_when_its_rows_change() -> None:
    system = await night()
    await system.submit(actors_kit.order("10252", workflow="care"), "m-10252")
    watcher, loaded = watching(system), []
    load = system.store.load

    async def counted(order_id: str) -> object:
        loaded.append(order_id)
        return await load(order_id)

    system.store.load = counted  # type: ignore[assignment]
    await watcher.look()
    assert sorted(loaded) == ["10248", "10249", "10250", "10252"]
    await watcher.look()
    assert len(loaded) == 4
    await system.drain()
    await watcher.look()
    assert loaded[4:] == []  # it is finished: its index row says so
    assert ended(watcher) == ["10251", "10252"]
    watcher.forget(["10248"])
    await watcher.look()
    assert loaded[4:] == ["10248"]


async def test_an_acknowledgement_is_seen_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    system = await night()
    watcher = watching(system)
    await watcher.look()
    await system.hand(actors_kit.command("acknowledge", system.order("10248").seq, "w", "10248"))
    monkeypatch.setattr(watch, "FRESH_FOR_S", 0.0)
    await watcher.look()
    row = next(row for row in watcher.picture.in_error if row.order_id == "10248")
    assert row.acknowledged_by == "ann"


async def test_only_so_many_orders_are_loaded_in_one_look_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "LOADED_MAX", 2)
    system = await night()
    watcher = watching(system)
    await watcher.look()
    assert len(watcher.picture.in_error) == 3
    assert sum(bool(row.fingerprints) for row in watcher.picture.in_error) == 2
    await watcher.look()
    assert all(row.fingerprints for row in watcher.picture.in_error)


async def test_a_store_that_is_away_leaves_the_last_picture_with_the_reason() -> None:
    system = await night()
    watcher = watching(system)
    await watcher.look()
    before = watcher.picture
    system.store.fail_next("attention", StoreFault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        await watcher.look()
    assert watcher.picture == before


async def test_an_order_whose_rows_are_broken_hides_no_others() -> None:
    system = await night()
    await system.submit(actors_kit.order("10252", workflow="care"), "m-10252")
    load = system.store.load

    async def broken(order_id: str) -> object:
        if order_id in {"10248", "10252"}:
            raise ValueError("the row of step 1 is missing")
        return await load(order_id)

    system.store.load = broken  # type: ignore[assignment]
    watcher = watching(system)
    await watcher.look()
    by_id = {row.order_id: row for row in (*watcher.picture.in_error, *watcher.picture.under_way)}
    assert sorted(by_id) == ["10248", "10249", "10250", "10252"]
    assert by_id["10248"].why == by_id["10252"].why
    assert by_id["10252"].why == "it cannot be read: the row of step 1 is missing"


async def test_the_oldest_due_step_is_named() -> None:
    system = kit(CARE)
    await system.submit(actors_kit.order("A", workflow="care"), "m-A")
    await system.later(5)
    await system.submit(actors_kit.order("B", workflow="care"), "m-B")
    watcher = watching(system)
    await watcher.look()
    assert watcher.picture.oldest is not None
    assert watcher.picture.oldest.order_id == "A"
    assert {row.why for row in watcher.picture.under_way} == {
        "A scheduler, to claim reserve. A scheduler, to claim pay."
    }


async def test_the_charts_count_each_minute_and_say_it_in_words() -> None:
    system = kit(CARE)
    await submit(system, "before-the-hour")
    await system.later(7200)
    for minute in range(3):
        await submit(system, f"A-{minute}")
        await system.later(60)
    await fail(system, "B", agent="payment", code="x", message="y")
    watcher = watching(system)
    while not watcher.picture.whole:
        await watcher.look()
    rates, times = charts.of(watcher.picture)
    assert rates.label == "In the last hour: 4 started, 3 completed, 0 undone, 1 failed."
    assert [bar.kind for bar in rates.bars] == ["completed"] * 3 + ["failed"]
    assert all(0 <= bar.y <= bar.y + bar.height <= charts.HEIGHT + 0.01 for bar in rates.bars)
    assert times.label.startswith("In the last hour: half of the completed orders took")
    empty, none = charts.of(watching(kit(CARE)).picture)
    assert (empty.bars, none.label) == ([], "No order completed in the last hour.")


@pytest.mark.parametrize("sort", ["since", "order", "workflow", "submitted"])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("state", ["all", "finished", "error", "processed", "under-way"])
async def test_pages_together_hold_each_order_once_in_the_order_of_the_sort(
    monkeypatch: pytest.MonkeyPatch, sort: str, backwards: bool, state: str
) -> None:
    monkeypatch.setattr(listing, "PER_PAGE", 3)
    monkeypatch.setattr(rows, "BLOCK_ROWS_MAX", 2)
    system = await night()
    for number in range(4):
        await submit(system, f"Z-{number}")
    await system.submit(actors_kit.order("under-way", workflow="care"), "m-u")
    watcher = watching(system)
    while not watcher.picture.whole:
        await watcher.look()
    query = listing.Query(state=state, sort=f"-{sort}" if backwards else sort)
    pages = listing.list_page(watcher.picture, query).pages
    all_rows = [
        row
        for page in range(1, pages + 1)
        for row in listing.list_page(watcher.picture, replace(query, page=page)).rows
    ]
    key = SORTS[sort]
    assert [key(row) for row in all_rows] == sorted(map(key, all_rows), reverse=backwards)
    count = {"all": 9, "finished": 5, "error": 3, "processed": 5, "under-way": 1}[state]
    assert len({row.order_id for row in all_rows}) == len(all_rows) == count


@pytest.mark.parametrize("seed", range(20))
def test_a_list_of_blocks_is_what_one_sort_of_all_its_rows_would_be(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(rows, "BLOCK_ROWS_MAX", 5)
    monkeypatch.setattr(listing, "PER_PAGE", 4)
    chance, now = random.Random(seed), datetime(2026, 11, 23, tzinfo=UTC)  # noqa: S311

    def row(number: int) -> Row:
        state = chance.choice([OrderState.PROCESSED, OrderState.COMPENSATED])
        since = now - timedelta(seconds=chance.randrange(7200))
        return Row(
            order_id=f"{chance.choice('aB')}-{number}",
            state=state,
            workflow=chance.choice("xy"),
            since=since,
        )

    blocks: list[rows.Block] = []
    by_id: dict[str, Row] = {}
    for part in range(6):  # in each part some are new, and some leave
        new_rows = [row(number) for number in range(part * 10, part * 10 + chance.randrange(10))]
        removals = {name for name in by_id if chance.random() < 0.1}
        blocks = rows.with_rows(rows.without(blocks, removals), new_rows)
        by_id = {name: row for name, row in by_id.items() if name not in removals}
        by_id |= {row.order_id: row for row in new_rows}
    assert all(0 < len(block) <= 5 for block in blocks)
    picture = watch.Picture(at=now, blocks=tuple(blocks), finished=by_id)
    for sort, state, text, age, workflow in itertools.product(
        SORTS, ("finished", "processed"), ("", "b-1"), ("", "1h"), ("", "x")
    ):
        query = listing.Query(
            state=state, workflow=workflow, age=age, text=text, sort=chance.choice(["", "-"]) + sort
        )
        fit = [
            row
            for row in by_id.values()
            if (state == "finished" or row.state is OrderState.PROCESSED)
            and text in row.order_id.lower()
            and workflow in {"", row.workflow}
            and (not age or (row.since or now) <= now - timedelta(hours=1))
        ]
        fit.sort(key=SORTS[sort], reverse=query.sort_in_use.startswith("-"))
        view = listing.list_page(picture, query)
        assert (view.total, view.pages) == (len(fit), max(1, -(-len(fit) // 4)))
        for page in range(1, view.pages + 1):
            page_rows = listing.list_page(picture, replace(query, page=page)).rows
            assert page_rows == fit[page * 4 - 4 : page * 4]


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
