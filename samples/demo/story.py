"""The text of the demo: the explanation before it, the report after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console

from samples.demo import scenario
from samples.demo.tally import Tally
from samples.demo.verdict import Verdict
from samples.services.faults import FaultKind
from samples.services.ledger import LedgerView

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
                                      orders (README, "Using it")
  orders/                             the business code: replace this folder
"""


def tell(
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
    say(f"  {verdict.states['Processed']} orders completed all their steps.")
    if moves["progress"]:
        say(f"  {moves['progress']} times a delivery got more time; no agent waited for it.")
    _tell_calls(console, ledgers)
    resets = moves["step reset"] + moves["undo reset"] + moves["reset, not counted"]
    say(f"  {resets} times CompleteBy passed without an answer (slow services, the killed")
    say("    process): the supervisor counted the failure and started the step again.")
    say(f"  {verdict.states['Compensated']} orders of the web shop failed and were undone:")
    say(f"    {moves['step undone']} steps were undone in reverse order.")
    say(f"  {verdict.states['Error']} orders failed and wait for an operator.")
    if alerts:
        say("    The first alerts on the queue operator-alerts:")
        for text in alerts[:3]:
            say(f"      {text}", highlight=False, soft_wrap=True)
    if tally.repeats:
        say(f"  {tally.repeats} notifications arrived twice (queues deliver at least once).")
    _tell_troubles(console, verdict)
    say("")
    say(NEXT, highlight=False)
    color = "green" if verdict.holds else "red"
    say(f"[{color}]{verdict.last_line()}[/]", highlight=False, soft_wrap=True)


def _tell_calls(console: Console, ledgers: Mapping[str, LedgerView]) -> None:
    faults: Counter[str] = Counter()
    for ledger in ledgers.values():
        faults.update(ledger["faults"])
    calls = sum(ledger["calls"] for ledger in ledgers.values())
    console.print(f"  {calls} remote calls, {faults.total()} with injected faults:")
    for kind, words in FAULTS.items():
        if faults[kind]:
            console.print(f"    {faults[kind]:5} {words}")
    console.print("    Agents retried the temporary faults; the applications did not see them.")


def _tell_troubles(console: Console, verdict: Verdict) -> None:
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
