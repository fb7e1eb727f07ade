"""The report of a run as text, and one picture: throughput over time, with the faults.

The picture of a soak shows memory and sockets too.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from lab.chaos.faults import Kind
from lab.chaos.reconciliation import Reconciliation
from lab.chaos.run import Happened, Run
from lab.chaos.soak import Sample
from sas.domain.messages import JournalWord

BUCKET_S = 5.0
WIDTH, HEIGHT, LEFT, TOP, LANE = 1300, 260, 230, 50, 16


def lines(run: Run, result: Reconciliation, seed: int) -> list[str]:
    """Return the report, a line each."""
    seconds = max([*run.ended_at, run.begun + 1]) - run.begun
    states = ", ".join(f"{count} {state}" for state, count in sorted(result.states.items()))
    found = [
        f"seed {seed}: {len(run.submitted)} orders, {len(run.happened)} faults, {seconds:.0f} s",
        f"{len(run.ended_at) / seconds:.1f} orders ended a second",
        f"in the store: {states or 'nothing'}" + _moved(run.moved),
        f"{result.notified} notifications, {result.calls} calls, {result.effects} effects in force",
        f"clocks of hosts at the end: {_clocks(run.system.clocks)}",
        "",
        "what must be zero:",
        *(f"  {len(entries):5}  {title}" for title, entries in result.wrong.items()),
        "",
        "what queues may do (at least once):",
        f"  {run.redelivered:5}  messages delivered again after a lost lock or connection",
        f"  {len(run.notified_after_window):5}  again after the duplicate detection window",
        "",
        "faults, and seconds from the end of each until the next order ended:",
        *_resumed(run),
        "",
        "transitions other than the happy path:",
        *(f"  {count:5}  {what}" for what, count in _unusual(result.transitions)),
    ]
    if run.gave_up:
        found.append(f"GIVEN UP: nothing moved for {run.quiet_s_max:.0f} s")
    for title, entries in result.wrong.items():
        found += [f"{title}: {entry}" for entry in entries]
    return found


def _moved(count: int) -> str:
    return f"; {count} were moved to the memory of this process, to keep Azurite fast" * (count > 0)


def _clocks(clocks: Mapping[str, float]) -> str:
    return ", ".join(f"{group} {shift_s:+.1f} s" for group, shift_s in clocks.items())


def _resumed(run: Run) -> list[str]:
    found, kinds = run.resumed_s(), run.kinds()
    return [
        f"  {kinds[kind]:5}  {kind:36}"
        f" median {statistics.median(times):5.1f}  max {max(times):5.1f}"
        for kind, times in sorted(found.items())
    ]


def _unusual(transitions: Counter[str]) -> list[tuple[str, int]]:
    usual = {JournalWord.SUBMITTED, JournalWord.CLAIMED, JournalWord.STEP_PROCESSED}
    return [(what, count) for what, count in transitions.most_common() if what not in usual]


def picture(run: Run, samples: Sequence[Sample] = ()) -> str:
    """Return the picture as SVG: orders in and ended a second; below, a lane for each fault."""
    end = max([*run.ended_at, *run.submitted_at, *(h.ended for h in run.happened), run.begun + 1])
    scale = (WIDTH - LEFT - 20) / (end - run.begun)
    kinds = [kind for kind in Kind if kind.value in run.kinds()]
    bottom = TOP + HEIGHT + 30 + LANE * len(kinds)
    rates = [_rates(moments, run.begun, end) for moments in (run.submitted_at, run.ended_at)]
    top_rate = max([*rates[0], *rates[1], 0.1])
    marks = [
        _text(LEFT, 20, f"{len(run.ended_at)} orders, {len(run.happened)} faults", 14),
        _text(LEFT, 38, "orders in a second (grey) and ended (blue), mean of 5 s; faults below"),
        _text(LEFT - 8, TOP + 8, f"{top_rate:.1f}/s", anchor="end"),
        _text(LEFT - 8, TOP + HEIGHT, "0", anchor="end"),
        *_curves(rates, top_rate, scale),
        *_worker(samples, run.begun, scale),
        *_seconds(end - run.begun, scale, bottom),
        *_lanes(run.happened, kinds, run.begun, scale),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 30}" '
        f'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
        + "".join(marks)
        + "</svg>\n"
    )


def _rates(moments: Sequence[float], begun: float, end: float) -> list[float]:
    buckets = Counter(int((at - begun) / BUCKET_S) for at in moments)
    return [buckets[number] / BUCKET_S for number in range(int((end - begun) / BUCKET_S) + 1)]


def _curves(rates: Sequence[Sequence[float]], top_rate: float, scale: float) -> list[str]:
    found = []
    for rate, color in zip(rates, ("#bbb", "#06c"), strict=True):
        points = " ".join(
            f"{LEFT + (number + 0.5) * BUCKET_S * scale:.1f},"
            f"{TOP + HEIGHT * (1 - value / top_rate):.1f}"
            for number, value in enumerate(rate)
        )
        found.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
    return found


def _worker(samples: Sequence[Sample], begun: float, scale: float) -> list[str]:
    """Draw memory and sockets of the worker, each from 0 to its highest value."""
    found = []
    for number, (name, color) in enumerate((("memory_mib", "#080"), ("sockets", "#c70"))):
        values = [float(getattr(one, name)) for one in samples]
        top = max(values, default=0.0)
        points = " ".join(
            f"{LEFT + (one.at - begun) * scale:.1f},{TOP + HEIGHT * (1 - value / top):.1f}"
            for one, value in zip(samples, values, strict=True)
        )
        if top:
            found.append(
                f'<polyline points="{points}" fill="none" stroke="{color}" stroke-dasharray="4"/>'
            )
            text = f"{name.replace('_mib', ', MiB')}: at most {top:.0f} ({color})"
            found.append(_text(WIDTH - 20, 20 + 18 * number, text, anchor="end"))
    return found


def _seconds(length_s: float, scale: float, bottom: int) -> list[str]:
    step = 10 if length_s < 150 else 60
    found = []
    for second in range(0, int(length_s) + 1, step):
        x = LEFT + second * scale
        found.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#eee"/>')
        found.append(_text(x, bottom + 15, f"{second} s"))
    return found


def _lanes(
    happened: Sequence[Happened], kinds: Sequence[Kind], begun: float, scale: float
) -> list[str]:
    found = []
    for number, kind in enumerate(kinds):
        y = TOP + HEIGHT + 20 + LANE * number
        for one in happened:
            if one.fault.kind is kind:
                x, width = LEFT + (one.begun - begun) * scale, (one.ended - one.begun) * scale
                found.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{max(2, width):.1f}" height="{LANE - 4}" '
                    f'fill="#d33"><title>{escape(str(one.fault))}</title></rect>'
                )
                found.append(
                    f'<rect x="{x:.1f}" y="{TOP}" width="{max(1, width):.1f}" height="{HEIGHT}" '
                    'fill="#d33" opacity="0.08"/>'
                )
        found.append(_text(LEFT - 8, y + 10, kind.value, anchor="end"))
    return found


def _text(x: float, y: float, text: str, size: int = 11, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
    )
