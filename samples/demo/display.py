"""What the demo prints: the explanation, the display while it runs, and the report.

The display is a live panel on a terminal, and plain lines elsewhere.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from samples.demo import scenario
from samples.demo.chart import History, bars, blocks
from samples.demo.tally import Tally
from samples.demo.verdict import Verdict
from samples.services.faults import FaultKind
from samples.services.ledger import LedgerView

LINE_EVERY_S = 5.0
EVENTS_MAX = 6
WIDTH_MAX = 120
CHART_LINES = 6

BEFORE = """[bold]Scheduler Agent Supervisor: {orders} real orders, with faults on purpose[/]

Every order calls three remote services: reserve stock, take payment, ship. The
three calls must succeed or fail together. Some orders of the web shop have two
more steps: an invoice by mail, and a delivery, which takes the carrier {delivery:.0f} s.
That is longer than the time allowed for a step.

  [cyan]scheduler[/]   claims a step (LockedBy, CompleteBy) and sends it to its agent
  [cyan]agent[/]       calls the service and retries with one Idempotency-Key; after
              CompleteBy it does not answer any more
  [cyan]supervisor[/]  finds expired steps, counts the failure and starts them again;
              above the limit the order is undone or waits for an operator

Two applications send orders to the queue [cyan]orders[/]. Each has its own response
queue. A failed order of the web shop is undone automatically. Wholesale orders
reserve and charge in parallel; if one fails, an operator decides.

Faults: 10 % of remote calls fail, 2 % of steps are always refused, some answers
come after CompleteBy, and two processes are killed while orders run on in them
(stock and shipping are called inline). You can kill one too:
kill -9 of any "devstack.functions" process.
"""

FAULTS: Mapping[FaultKind, str] = {
    FaultKind.RESET: "connection reset before the effect",
    FaultKind.RESET_AFTER_EFFECT: "connection reset after the effect, before the answer",
    FaultKind.ERROR: "500 before the effect",
    FaultKind.ERROR_AFTER_EFFECT: "500 after the effect",
    FaultKind.UNAVAILABLE: "503, unavailable",
    FaultKind.TOO_MANY: "429, too many calls",
    FaultKind.SLOW_BEFORE_EFFECT: "effect and answer after CompleteBy",
    FaultKind.SLOW_AFTER_EFFECT: "effect in time, answer after CompleteBy",
    FaultKind.REFUSED: "always refused",
    FaultKind.UNDO_REFUSED: "undo always refused",
}
"""The injected faults in words."""


def judging(console: Console) -> None:
    """Explain the last seconds."""
    console.print(
        "\nComparing the state and journal of every order with the notifications that\n"
        "its application got, and with the ledgers of the services ...",
        highlight=False,
    )


def before(console: Console, orders: int) -> None:
    """Explain the demo."""
    console.print(BEFORE.format(orders=orders, delivery=scenario.DELIVERY_S), highlight=False)


def starting(console: Console) -> None:
    """Explain the first seconds."""
    groups = ", ".join(scenario.GROUPS)
    console.print(f"Starting a Service Bus broker, Azurite, and host processes\n({groups}) ...")


@dataclass(slots=True, kw_only=True)
class Screen:
    """Shows a tally and the latest events."""

    console: Console
    tally: Tally
    calls: int = 0
    faults: int = 0
    history: History = field(default_factory=History)
    events: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    _live: Live | None = None
    _last_line: float = 0.0

    def begin(self) -> None:
        """Start the display."""
        self.started = time.monotonic()
        if self.console.is_terminal:
            self._live = Live(self._panel(), console=self.console, refresh_per_second=4)
            self._live.start()

    def end(self) -> None:
        """Stop the display."""
        if self._live is not None:
            self._live.update(self._panel())
            self._live.stop()
            self._live = None

    def killed(self, text: str) -> None:
        """Show that a process was killed."""
        self.history.kills.append(time.monotonic() - self.started)
        self.event(text)

    def event(self, text: str) -> None:
        """Show an event."""
        stamped = f"{time.monotonic() - self.started:5.1f} s  {text}"
        self.events = [*self.events, stamped][-EVENTS_MAX:]
        if self._live is None:
            self.console.print(f"  {stamped}", highlight=False)

    def update(self) -> None:
        """Show the current numbers."""
        self.history.note(time.monotonic() - self.started, len(self.tally.ended), self.faults)
        if self._live is not None:
            self._live.update(self._panel())
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            self.console.print(self._line(), highlight=False, soft_wrap=True)

    def _line(self) -> str:
        tally = self.tally
        return (
            f"  {time.monotonic() - self.started:5.1f} s  received {len(tally.received)}"
            f"/{tally.orders}, processing {tally.processing}, processed {tally.ends('completed')}, "
            f"failed {tally.ends('failed')}, undone {tally.ends('undone')}; "
            f"{self.calls} remote calls, {self.faults} with faults"
        )

    def _panel(self) -> RenderableType:
        width = min(self.console.width, WIDTH_MAX)
        states = Table.grid(padding=(0, 2))
        for name, count, color in self._states():
            bar = ProgressBar(
                total=max(self.tally.orders, 1),
                completed=count,
                width=width // 3,
                complete_style=color,
                finished_style=color,
            )
            states.add_row(name, bar, f"{count:>5}")
        history, row = self.history, width - 46
        ended, faults = history.ended(), history.faults()
        lately = sum(ended[-5:]) / len(ended[-5:])
        pace = Table.grid(padding=(0, 2))
        pace.add_row("ended", blocks(ended, row), f"{lately:.1f}/s, mean {history.mean():.1f}/s")
        pace.add_row("faults", blocks(faults, row), f"{self.faults} of {self.calls} remote calls")
        pace.add_row("kills", "", f"{len(history.kills)} (kill -9 of a host)")
        events = Text("\n".join(self.events), style="dim", overflow="ellipsis", no_wrap=True)
        title = f"{self.tally.orders} orders, {time.monotonic() - self.started:.0f} s"
        return Panel(Group(states, Text(), pace, Text(), events), title=title, width=width)

    def _states(self) -> list[tuple[str, int, str]]:
        tally = self.tally
        return [
            ("received", len(tally.received), "cyan"),
            ("processing", tally.processing, "yellow"),
            ("processed", tally.ends("completed"), "green"),
            ("failed, for an operator", tally.ends("failed"), "red"),
            ("failed, all undone", tally.ends("undone"), "magenta"),
        ]


def report(
    console: Console,
    verdict: Verdict,
    *,
    tally: Tally,
    ledgers: Mapping[str, LedgerView],
    alerts: Sequence[str],
) -> None:
    """Print the report with its figures."""
    say = console.print
    moves = verdict.transitions
    say("\n[bold]What happened[/]")
    say(f"  {_orders(verdict.states['Processed'])} completed all steps.")
    if moves["progress"]:
        say(f"  {moves['progress']} times a delivery got more time; no agent waited for it.")
    _report_calls(console, ledgers)
    resets = moves["step reset"] + moves["undo reset"]
    say(f"  {resets} times CompleteBy passed without an answer (slow services, the killed")
    say("    processes): the supervisor counted the failure and started the step again.")
    waits = moves["waits in its queue"]
    if waits:
        say(f"  {waits} times a message of the step still waited in a queue then (or a killed")
        say("    process held its lock): nothing was counted, and the step got more time.")
    say(f"  {_orders(verdict.states['Compensated'])} of the web shop failed;")
    say(f"    {moves['step undone']} steps were undone, in reverse order.")
    say(f"  {_orders(verdict.states['Error'])} failed: an operator must decide.")
    if alerts:
        say("    The first alerts on the queue operator-alerts:")
        for text in alerts[:3]:
            say(f"      {text}", highlight=False, soft_wrap=not console.is_terminal)
    if tally.repeats:
        say(f"  {tally.repeats} notifications arrived twice (queues deliver at least once).")
    _report_problems(console, verdict)


def chart(console: Console, history: History) -> None:
    """Show on a terminal how many orders ended in each second."""
    if not console.is_terminal:
        return
    title = f"{sum(history.ended())} orders in {history.seconds} s, {history.mean():.1f} a second"
    console.print(f"\n[bold]Orders ended a second[/] ({title})")
    for line in bars(history.ended(), min(console.width, WIDTH_MAX) - 4, CHART_LINES):
        console.print(f"  [green]{line}[/]", highlight=False, soft_wrap=True)


def next_steps(console: Console, orders: int, directory: str | None, *, is_default: bool) -> None:
    """Print what to try next. Commands that were just run are left out."""
    steps = []
    if directory is not None:
        steps += [
            (f"make up DATA={directory}", "the same queues, table and services, with their orders"),
            (".venv/bin/sas list", "then, in another shell: show, resubmit, undo"),
        ]
    else:
        steps += [
            ("make demo KEEP=1", "keeps the orders, so that you can operate them"),
            ("make up", "the tour of README in ten minutes"),
        ]
    if orders < scenario.ORDERS_MAX:
        steps.append(("make demo", f"all {scenario.ORDERS_MAX} orders"))
    if is_default:
        more_faults = ".venv/bin/python -m samples.demo --seed 7 --transient 0.3"
        steps.append((more_faults, "more faults"))
    console.print("\n[bold]Try next[/]")
    for command, reason in steps:
        console.print(f"  {command:<24}  {reason}", highlight=False, soft_wrap=True)


def last_line(console: Console, verdict: Verdict) -> None:
    """Print the verdict."""
    color = "green" if verdict.holds else "red"
    if verdict.holds:
        words = "Every order ended. No notification is missing, no effect is missing or doubled."
    else:
        words = "Something is wrong: it is named above."
    for text in (f"\nVerdict: {words}", verdict.last_line()):
        console.print(f"[{color}]{text}[/]", highlight=False, soft_wrap=not console.is_terminal)


def _orders(count: int) -> str:
    return f"{count} order" if count == 1 else f"{count} orders"


def _report_calls(console: Console, ledgers: Mapping[str, LedgerView]) -> None:
    faults: Counter[str] = Counter()
    for ledger in ledgers.values():
        faults.update(ledger["faults"])
    calls = sum(ledger["calls"] for ledger in ledgers.values())
    console.print(f"  {calls} remote calls, {faults.total()} with injected faults:")
    for kind, words in FAULTS.items():
        if faults[kind]:
            console.print(f"    {faults[kind]:5} {words}")
    console.print("    Agents retried the temporary faults; the applications did not see them.")


def _report_problems(console: Console, verdict: Verdict) -> None:
    if verdict.effects_unknown:
        console.print(
            f"  {verdict.effects_unknown} remote effects belong to steps that timed out for good:\n"
            "    their answers were lost, so an operator must check them."
        )
    for title, entries in (
        ("unfinished", verdict.unfinished),
        ("notifications missing", verdict.missing),
        ("effects wrong", verdict.wrong_effects),
        ("effects doubled", verdict.doubled),
    ):
        if entries:
            suffix = " ..." if len(entries) > 5 else ""
            console.print(f"  [red]{title}: {', '.join(entries[:5])}{suffix}[/]")
