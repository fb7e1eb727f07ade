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
from samples.demo.tally import Tally
from samples.demo.verdict import Verdict
from samples.services.faults import FaultKind
from samples.services.ledger import LedgerView

LINE_EVERY_S = 5.0
EVENTS_MAX = 6

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
come after CompleteBy, and one agent process is killed. You can kill one too:
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

NEXT = """[bold]Try next[/]
  make demo ORDERS=20                 a quick look
  .venv/bin/python -m samples.demo --seed 7 --transient 0.3
                                      more faults
  .venv/bin/python -m devstack up .   Azure on this machine, for your own
                                      orders (README, "Use it")
  orders/                             the business code: replace this folder
"""


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


@dataclass(slots=True)
class Screen:
    """Shows a tally and the latest events."""

    console: Console
    tally: Tally
    calls: int = 0
    faults: int = 0
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

    def event(self, text: str) -> None:
        """Show an event."""
        stamped = f"{time.monotonic() - self.started:5.1f} s  {text}"
        self.events = [*self.events, stamped][-EVENTS_MAX:]
        if self._live is None:
            self.console.print(f"  {stamped}", highlight=False)

    def update(self) -> None:
        """Show the current numbers."""
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
        tally = self.tally
        table = Table.grid(padding=(0, 2))
        rows = [
            ("received", len(tally.received), "cyan"),
            ("processing", tally.processing, "yellow"),
            ("processed", tally.ends("completed"), "green"),
            ("failed, held for an operator", tally.ends("failed"), "red"),
            ("failed, all steps undone", tally.ends("undone"), "magenta"),
        ]
        for name, count, color in rows:
            bar = ProgressBar(
                total=max(tally.orders, 1), completed=count, width=36, complete_style=color,
                finished_style=color,
            )  # fmt: skip
            table.add_row(name, bar, f"{count:>5}")
        retries = Text(
            f"{self.calls} remote calls, {self.faults} with injected faults; agents repeat calls "
            "with the same idempotency key"
        )
        events = Text("\n".join(self.events), style="dim")
        seconds = time.monotonic() - self.started
        title = f"{tally.orders} orders, {seconds:.0f} s"
        return Panel(Group(table, retries, events), title=title, width=100)


def report(
    console: Console,
    verdict: Verdict,
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
    say("    process): the supervisor counted the failure and started the step again.")
    waits = moves["waits in its queue"]
    if waits:
        say(f"  {waits} times a message of the step still waited in a queue then (or the killed")
        say("    process held its lock): nothing was counted, and the step got more time.")
    say(f"  {_orders(verdict.states['Compensated'])} of the web shop failed;")
    say(f"    {moves['step undone']} steps were undone, in reverse order.")
    say(f"  {_orders(verdict.states['Error'])} failed: an operator must decide.")
    if alerts:
        say("    The first alerts on the queue operator-alerts:")
        for text in alerts[:3]:
            say(f"      {text}", highlight=False, soft_wrap=True)
    if tally.repeats:
        say(f"  {tally.repeats} notifications arrived twice (queues deliver at least once).")
    _report_problems(console, verdict)
    say("")
    say(NEXT, highlight=False)
    color = "green" if verdict.holds else "red"
    say(f"[{color}]{verdict.last_line()}[/]", highlight=False, soft_wrap=True)


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
    for title, found in (
        ("unfinished", verdict.unfinished),
        ("notifications missing", verdict.missing),
        ("effects wrong", verdict.wrong_effects),
        ("effects doubled", verdict.doubled),
    ):
        if found:
            more = " ..." if len(found) > 5 else ""
            console.print(f"  [red]{title}: {', '.join(found[:5])}{more}[/]")
