"""``sas cost``: what a deployment costs, by item."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from sas.cli import arguments as args
from sas.cli import counts, output
from sas.cli.arguments import Verb
from sas.cli.bill import DAYS, ITEMS, Line, Load, Price, Prices, bill, idle_cost
from sas.cli.counts import Count
from sas.codec.record import to_line
from sas.operate.errors import UsageError

COST = """\
Estimate what a deployment costs on Azure, by item, for so many orders a day. Nothing is asked of
Azure. What an order, a sweep and a purge ask for was counted (--counts shows it). The prices are
those of a file: start from samples/prices.json, and put yours into it.

Idling is what a month without an order takes. Items without a price in the file are named, and the
total is without them (exit code 1). docs/cost.md has examples, and what is assumed.

  sas cost --orders 1000 --prices samples/prices.json
  sas cost --orders 50000 --spread 8 --steps 5 --prices samples/prices.json --json
  sas cost --counts
"""

SINGLE = {
    "order": counts.ORDER,
    "step": counts.STEP,
    "order, apart": counts.ORDER_APART,
    "step, apart": counts.STEP_APART,
    "sweep": counts.SWEEP,
    "health check": counts.HEALTH_CHECK,
    "due row": counts.DUE_ROW,
    "queue look": counts.QUEUE_LOOK,
    "idle hour": counts.IDLE_HOUR,
    "purge": counts.PURGE_RUN,
    "purge, batch": counts.PURGE_BATCH,
    "purge, group": counts.PURGE_TOGETHER,
    "purge, order": counts.PURGE_ORDER,
}
COUNTED = (
    "transactions", "queries", "reads", "writes", "deletes", "entities_read", "entities_written",
    "sends", "messages", "peeks",
)  # fmt: skip


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    number = args.number
    add = parser.add_argument
    add("--orders", type=number("orders", 0, 1e9), metavar="N", help="orders a day")
    add("--prices", metavar="FILE", help="JSON file of prices (samples/prices.json is an example)")
    add(
        "--spread", type=number("hours", 0.1, 24), default=24.0, metavar="HOURS",
        help="the hours of a day in which the orders come (default: 24)",
    )  # fmt: skip
    add(
        "--steps", type=number("steps", 1, 30, whole=True), default=3, metavar="N",
        help="steps of an order (default: 3)",
    )  # fmt: skip
    add(
        "--call", type=number("seconds", 0, 600), default=0.5, metavar="SECONDS",
        help="how long a call of a remote service takes (default: 0.5)",
    )  # fmt: skip
    add(
        "--memory", type=float, choices=(0.5, 2.0, 4.0), default=2.0,
        help="GB of an instance (default: 2)",
    )  # fmt: skip
    add(
        "--sweep", type=number("seconds", 1, 3600), default=10.0, metavar="SECONDS",
        help="pause between two sweeps (default: 10)",
    )  # fmt: skip
    add(
        "--premium", type=int, choices=(0, 1, 2, 4, 8, 16), default=0,
        help="messaging units of Service Bus Premium (default: 0, Standard)",
    )  # fmt: skip
    add(
        "--keep", type=number("days", 1, 36_500), default=30.0, metavar="DAYS",
        help="how long finished orders are kept (default: 30)",
    )  # fmt: skip
    add(
        "--share", type=number("a share", 0, 1), default=1.0, metavar="SHARE",
        help="SAS_TELEMETRY_SHARE (default: 1)",
    )  # fmt: skip
    add("--counts", action="store_true", help="show what was counted instead of a bill")
    args.add_json(parser, "JSON instead of tables")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.counts:
        _show_counts(as_json=arguments.json)
        return 0
    if arguments.orders is None or arguments.prices is None:
        raise UsageError("give --orders N and --prices FILE (or --counts)")
    prices = read_prices(arguments.prices)
    load = Load(
        orders=arguments.orders,
        spread_hours=arguments.spread,
        steps=int(arguments.steps),
        call_s=arguments.call,
        memory_gb=arguments.memory,
        sweep_every_s=arguments.sweep,
        premium_units=arguments.premium,
        kept_days=arguments.keep,
        share=arguments.share,
    )
    lines = bill(load, prices)
    without = [line.item for line in lines if line.cost is None]
    if arguments.json:
        output.say(to_line(_record(load, prices, lines)))
    else:
        _show(load, prices, lines)
    return 1 if without else 0


def read_prices(file: str) -> Prices:
    """Return the prices of a file.

    Raises:
        UsageError: it cannot be read, or something in it is wrong.
    """
    try:
        prices = msgspec.json.decode(Path(file).read_bytes(), type=Prices)
    except OSError as wrong:
        raise UsageError(f"{file}: it cannot be read: {wrong.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{file}: {wrong} (samples/prices.json shows the form)") from None
    unknown = sorted(prices.items.keys() - ITEMS.keys())
    if unknown:
        raise UsageError(f"{file}: there is no item {unknown[0]!r}; use {', '.join(ITEMS)}")
    for item, price in prices.items.items():
        _check_tiers(f"{file}: {item}", price)
    return prices


def _check_tiers(where: str, price: Price) -> None:
    starts = [start for start, _ in price.tiers]
    rises = starts == sorted(set(starts))
    if not starts or not rises or min(starts) < 0 or min(cost for _, cost in price.tiers) < 0:
        raise UsageError(
            f"{where}: give tiers as pairs [from, price], from 0 on and rising, for instance "
            "[[0, 1.5]]"
        )


def _show(load: Load, prices: Prices, lines: list[Line]) -> None:
    money = prices.currency
    heading = ("Item", "Unit", "Idling", "Orders", f"{money} a day", f"{money} a month")
    rows = [
        (
            line.item,
            line.unit,
            _quantity(line.idle),
            _quantity(line.orders),
            *((_money(line.cost / DAYS), _money(line.cost)) if line.cost is not None else _NONE),
        )
        for line in lines
    ]
    total, idle = _total(lines), idle_cost(load, prices)
    rows += [
        ("total", "-", "-", "-", _money(total / DAYS), _money(total)),
        ("of it idling", "-", "-", "-", _money(idle / DAYS), _money(idle)),
    ]
    for text in output.table(heading, rows):
        output.say(text)
    if load.orders:
        each = 1000 * (total - idle) / (load.orders * DAYS)
        output.say(output.row([f"Beside idling, 1,000 orders cost {_money(each)} {money}."]))
    without = [line.item for line in lines if line.cost is None]
    if without:
        output.say(output.row([f"Without a price, and not in the total: {', '.join(without)}."]))


_NONE = ("no price", "no price")


def _show_counts(*, as_json: bool) -> None:
    found = {**SINGLE, **counts.RECOVERIES}
    if as_json:
        for name, count in found.items():
            output.say(to_line(_count_record(name, count)))
        return
    heading = ("Of", *(name.replace("entities", "rows").replace("_", " ") for name in COUNTED))
    rows = [(name, *(_cell(count, field) for field in COUNTED)) for name, count in found.items()]
    for text in output.table(heading, rows, [[count.what] for count in found.values()]):
        output.say(text)


def _cell(count: Count, field: str) -> str:
    value = getattr(count.usage, field)
    return f"{value:,}" if value else "-"


def _count_record(name: str, count: Count) -> dict[str, object]:
    usage = {field: getattr(count.usage, field) for field in COUNTED}
    return {"of": name, "what": count.what, **usage, "executions": dict(count.executions)}


def _record(load: Load, prices: Prices, lines: list[Line]) -> dict[str, object]:
    total, idle = _total(lines), idle_cost(load, prices)
    return {
        "currency": prices.currency,
        "orders_a_day": load.orders,
        "spread_hours": load.spread_hours,
        "steps": load.steps,
        "items": [
            {
                "item": line.item,
                "unit": line.unit,
                "idling": line.idle,
                "orders": line.orders,
                "a_day": None if line.cost is None else line.cost / DAYS,
                "a_month": line.cost,
            }
            for line in lines
        ],
        "a_day": total / DAYS,
        "a_month": total,
        "idling_a_month": idle,
        "without": [line.item for line in lines if line.cost is None],
    }


def _total(lines: list[Line]) -> float:
    return sum(line.cost or 0 for line in lines)


def _quantity(value: float) -> str:
    if not value:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def _money(value: float) -> str:
    return "<0.01" if 0 < value < 0.005 else f"{value:,.2f}"


VERBS = (Verb("cost", "estimate the bill, by item", COST, _add_arguments, _run),)
