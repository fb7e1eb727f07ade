"""The report of many simulations: one HTML page with charts. It loads nothing from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

from sas.testing.tally import Tally, percentile

_STYLE = """
:root{color-scheme:light dark;--fg:#1c2430;--soft:#667084;--bg:#fff;--line:#d8dde6;--bar:#3b6fd4;
--bad:#c0392b;--good:#2e8b57}
@media (prefers-color-scheme:dark){:root{--fg:#e6e9ef;--soft:#98a2b3;--bg:#14181f;--line:#333b48;
--bar:#7aa2f7;--bad:#ff7b72;--good:#63c08a}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:72rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:600}
.good{color:var(--good)}.bad{color:var(--bad)}p.soft,figcaption{color:var(--soft)}
figure{margin:1rem 0}svg{overflow:visible}svg text{fill:var(--fg);font:12px system-ui,sans-serif}
svg rect{fill:var(--bar)}
"""
_DURATIONS = (1, 3, 10, 30, 60, 180, 600, 3600, 6 * 3600, 86400, 7 * 86400)
_NAMES = ("1 s", "3 s", "10 s", "30 s", "1 min", "3 min", "10 min", "1 h", "6 h", "1 d", "7 d")
_STEP_COLUMNS = (
    "dispatched",
    "asked_again",
    "done",
    "refused",
    "timeouts",
    "cut_off",
    "undone",
    "undo_failed",
    "left_in_force",
)
_LEGEND = (
    '<p class="soft">Asked again: calls for work that the service had done already. Each is a '
    "second effect if the service does not keep its key. Cut off: the time limit ended calls in "
    "which no fault was at work. Left in force: the effect of a step "
    "without an undo, in an order that was undone.</p>"
)
_STATES = ("Processed", "Compensated", "Error", "Rejected")
WAYS_MAX = 20
"""Most undo paths of a workflow in its chart."""


def html(tally: Tally, app: str, again: Callable[[int], str]) -> str:
    """Return the page. ``again`` returns the command that repeats a seed."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Simulation of {escape(app)}</title><style>{_STYLE}</style>",
            f"<h1>Simulation of {escape(app)}</h1>",
            *_verdict(tally, again),
            *_list("What to look at", [*tally.own_faults_told(again), *tally.advice()]),
            "<h2>How orders ended</h2>",
            *_table(["workflow", *_STATES, "p50", "p99"], _ends(tally)),
            *_charts(tally),
            "<h2>Steps</h2>",
            *_table(
                ["step", *(name.replace("_", " ") for name in _STEP_COLUMNS), "p50", "p99"],
                _steps(tally),
            ),
            _LEGEND,
            "<h2>Transitions, by the state of the order after them</h2>",
            *_table(["transition", *_states_of(tally)], _words(tally)),
            *_ways_back(tally),
            f"<h2>Coverage</h2><p>{escape(tally.coverage())}.</p>",
            *_list("Kinds of transition never reached", tally.never_reached()),
            *_list("Transitions into a state never reached", tally.pairs_never_reached()),
            *_list("States never reached", tally.states_never_reached()),
            "<h2>Conditions that a transition never followed</h2>",
            *_table(
                ["transition, into state", "conditions"],
                [
                    [f"{word}, {state}", ", ".join(missing)]
                    for (word, state), missing in tally.not_met().items()
                ],
            ),
            "</html>",
        ]
    )


def _verdict(tally: Tally, again: Callable[[int], str]) -> Iterator[str]:
    if tally.interrupted:
        yield '<p class="bad">Interrupted before every seed was played.</p>'
    seeds = f"{tally.seeds:,} seeds, {tally.orders:,} orders: "
    if not tally.broken:
        yield f'<p class="good">{seeds}no invariant was broken.</p>'
        return
    yield f'<p class="bad">{seeds}{len(tally.broken)} seeds broke an invariant.</p>'
    lines = [f"seed {seed}: {broken[0]}: {again(seed)}" for seed, broken in tally.broken[:50]]
    yield from _list("Broken", lines)


def _list(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"<h2>{title}</h2><ul>"
        yield from (f"<li>{escape(line)}</li>" for line in lines)
        yield "</ul>"


def _table(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "<table><tr>" + "".join(f"<th>{escape(one)}</th>" for one in heading) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>"
    yield "</table>"


def _ends(tally: Tally) -> list[list[object]]:
    names = sorted({name for name, _ in tally.ends})
    return [
        [name, *(tally.ends[name, state] for state in _STATES), *_middle(tally.seconds[name])]
        for name in names
    ]


def _steps(tally: Tally) -> list[list[object]]:
    return [
        [
            f"{workflow}: {name}",
            *(getattr(one, column) for column in _STEP_COLUMNS),
            *_middle(one.seconds),
        ]
        for (workflow, name), one in sorted(tally.steps.items())
    ]


def _middle(seconds: Sequence[float]) -> tuple[str, str]:
    return f"{percentile(seconds, 0.5):.1f} s", f"{percentile(seconds, 0.99):.1f} s"


def _states_of(tally: Tally) -> list[str]:
    return sorted({state for _, state in tally.words})


def _words(tally: Tally) -> list[list[object]]:
    states = _states_of(tally)
    return [
        [word, *(tally.words[word, state] or "" for state in states)]
        for word in sorted({word for word, _ in tally.words})
    ]


def _charts(tally: Tally) -> Iterator[str]:
    yield from _per_step(tally, "timeouts")
    yield from _per_step(tally, "asked_again")
    yield from _per_step(tally, "undone")
    for name, seconds in sorted(tally.seconds.items()):
        yield f"<figure>{_bars(seconds)}<figcaption>{escape(name)}: time to the end, faults "
        yield f"included ({len(seconds):,} orders)</figcaption></figure>"


def _per_step(tally: Tally, column: str) -> Iterator[str]:
    """Yield a chart of one count over all steps."""
    counts = [(f"{name[0]}: {name[1]}", getattr(one, column)) for name, one in tally.steps.items()]
    if any(count for _, count in counts):
        yield from _chart(sorted(counts), f"{column.replace('_', ' ')} of each step")


def _ways_back(tally: Tally) -> Iterator[str]:
    """Yield a chart of the ways in which the orders of each workflow were undone."""
    yield "<h2>Undo paths</h2>"
    paths = tally.undo_paths()
    if not paths:
        yield "<p>No order was undone.</p>"
    for name, ways in paths.items():
        more = f" The first {WAYS_MAX} of {len(ways)} ways." if len(ways) > WAYS_MAX else ""
        title = f"{name}: steps in the order in which they were undone, by number of orders.{more}"
        yield from _chart(ways[:WAYS_MAX], title, below=18)


def _chart(counts: Sequence[tuple[str, int]], title: str, below: int = 0) -> Iterator[str]:
    """Yield bars beside their names, or so far ``below`` them."""
    most, line, left = max(count for _, count in counts), 18 + below, 0 if below else 260
    rows = [
        f'<text x="0" y="{line * row + 13}">{escape(name)}</text>'
        f'<rect x="{left}" y="{line * row + 3 + below}" width="{400 * count / most:.1f}" '
        f'height="12" rx="3"/><text x="{left + 6 + 400 * count / most:.1f}" '
        f'y="{line * row + 13 + below}">{count:,}</text>'
        for row, (name, count) in enumerate(counts)
    ]
    height = line * len(rows) + 6
    yield f'<figure><svg viewBox="0 0 740 {height}" role="img" aria-label="{escape(title)}">'
    yield "".join(rows) + f"</svg><figcaption>{escape(title)}</figcaption></figure>"


def _bars(seconds: Sequence[float]) -> str:
    counts = [0] * (len(_DURATIONS) + 1)
    for one in seconds:
        counts[sum(one > most for most in _DURATIONS)] += 1
    most = max([*counts, 1])
    parts = []
    for number, count in enumerate(counts):
        high, left = 110 * count / most, 10 + number * 70
        label = f"≤ {_NAMES[number]}" if number < len(_NAMES) else "longer"
        parts.append(
            f'<rect x="{left}" y="{130 - high:.1f}" width="50" height="{high:.1f}" rx="3"/>'
            f'<text x="{left + 25}" y="148" text-anchor="middle">{label}</text>'
            f'<text x="{left + 25}" y="{124 - high:.1f}" text-anchor="middle">{count or ""}</text>'
        )
    width = 20 + 70 * len(counts)
    told = ", ".join(f"{count} within {name}" for count, name in zip(counts, _NAMES, strict=False))
    return (
        f'<svg viewBox="0 0 {width} 156" role="img" aria-label="{told}" width="100%">'
        + "".join(parts)
        + "</svg>"
    )
