"""What the demo says: before, so that a newcomer knows what to look for, and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console

from samples.demo import scenario
from samples.demo.tally import Tally
from samples.demo.verdict import Verdict
from samples.services.faults import FaultKind
from samples.services.ledger import LedgerView

BEFORE = """[bold]Scheduler Agent Supervisor: {orders} real orders, everything going wrong[/]

Every order is three calls to remote services: reserve stock, take payment,
ship. Together they must succeed or fail as one. Some of the web shop's go on
until the parcel has arrived: an invoice is mailed beside shipping, and a
carrier delivers in {delivery:.0f} s, more than a step is allowed.

  [cyan]scheduler[/]   claims a step (LockedBy, CompleteBy), asks its agent to do it
  [cyan]agent[/]       calls the service, retries under one Idempotency-Key, and
              falls silent once CompleteBy has passed
  [cyan]supervisor[/]  finds what has expired, counts the failure and has it done
              again; past the threshold the order is undone or held

Two applications put orders on the queue [cyan]orders[/]; each is told on a queue of
its own. The web shop's are undone by themselves when a step fails for good;
wholesale's reserve and charge side by side, and wait for an operator.

On purpose: 10 % of remote calls fail, 2 % of steps are refused for good, some
answers come after CompleteBy, and one agent process is killed on the way. Kill
one yourself, if you like: kill -9 of any "devstack.functions" process.
"""

FAULTS: Mapping[FaultKind, str] = {
    FaultKind.RESET: "connection cut before anything was done",
    FaultKind.RESET_AFTER_EFFECT: "done, and the connection cut before the answer",
    FaultKind.ERROR: "500, nothing done",
    FaultKind.ERROR_AFTER_EFFECT: "done, and 500 answered all the same",
    FaultKind.UNAVAILABLE: "503, try later",
    FaultKind.TOO_MANY: "429, too many calls",
    FaultKind.SLOW_BEFORE_EFFECT: "done and answered after CompleteBy",
    FaultKind.SLOW_AFTER_EFFECT: "done in time, answered after CompleteBy",
    FaultKind.REFUSED: "refused for good",
    FaultKind.UNDO_REFUSED: "its undo refused for good",
}
"""What the services do on purpose, in words."""

NEXT = """[bold]Try next[/]
  make demo ORDERS=20                 a quick look
  .venv/bin/python -m samples.demo --seed 7 --transient 0.3
                                      worse weather
  .venv/bin/python -m devstack up .   Azure on this machine, for orders of your
                                      own (README, "Using it")
  orders/                             the business: the folder to replace
"""


def tell(
    console: Console,
    verdict: Verdict,
    tally: Tally,
    ledgers: Mapping[str, LedgerView],
    alerts: Sequence[str],
) -> None:
    """Say what happened, in words, with the figures that show it."""
    say = console.print
    moves = verdict.transitions
    say("\n[bold]What happened[/]")
    say(f"  {verdict.states['Processed']} orders went through all their steps.")
    if moves["progress"]:
        say(f"  {moves['progress']} times a delivery was given more time; nobody waited for it.")
    _tell_calls(console, ledgers)
    resets = moves["step reset"] + moves["undo reset"] + moves["reset, not counted"]
    say(f"  {resets} times CompleteBy passed without an answer (slow services, the killed")
    say("    process): the supervisor counted the failure and had it done again.")
    say(f"  {verdict.states['Compensated']} web-shop orders failed for good and were undone:")
    say(f"    {moves['step undone']} steps taken back, in reverse order.")
    say(f"  {verdict.states['Error']} wholesale orders failed and wait for an operator.")
    if alerts:
        say("    The first alerts on operator-alerts:")
        for text in alerts[:3]:
            say(f"      {text}", highlight=False, soft_wrap=True)
    if tally.repeats:
        say(f"  {tally.repeats} notifications came twice (at least once is what queues promise).")
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
    console.print(f"  {calls} remote calls; {faults.total()} were made to fail:")
    for kind, words in FAULTS.items():
        if faults[kind]:
            console.print(f"    {faults[kind]:5} {words}")
    console.print("    Agents retried what may pass; no application noticed.")


def _tell_troubles(console: Console, verdict: Verdict) -> None:
    if verdict.effects_unknown:
        console.print(
            f"  {verdict.effects_unknown} remote effects are of steps that timed out for good:\n"
            "    nobody heard whether they were done, so an operator is asked to look."
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
    """Say what takes the seconds at the end."""
    console.print(
        "\nNow the rows and the journal of every order are held against what its\n"
        "application was told, and against the services' own books ...",
        highlight=False,
    )


def before(console: Console, orders: int) -> None:
    """Say what is about to happen."""
    console.print(BEFORE.format(orders=orders, delivery=scenario.DELIVERY_S), highlight=False)


def starting(console: Console) -> None:
    """Say what takes the first seconds."""
    groups = ", ".join(scenario.GROUPS)
    console.print(f"Starting a Service Bus broker, Azurite, and host processes\n({groups}) ...")
