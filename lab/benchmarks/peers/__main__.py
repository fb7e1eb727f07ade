"""The same saga on this project and its peers, in turns: ``python -m lab.benchmarks.peers``.

Installs the peers into ``build/peers`` the first time. One after the other, several rounds; every
peer also has its workers killed once. Ends within about ``--minutes``, whatever was measured by
then is printed. Read README.md before you compare figures.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from devstack.inputs import DevstackError
from lab.benchmarks.peers import report
from lab.benchmarks.peers.install import NotInstalledError, install
from lab.benchmarks.peers.measure import Recovery, Speed, recovery, speed
from lab.benchmarks.peers.rigs import RIGS, Rig

RESULTS = Path(__file__).with_name("RESULTS.md")
SECONDS = {1: 3.0, 10: 4.0, 100: 6.0}
QUICK = {1: 1.5, 10: 2.0, 100: 2.0}
VISIT_S = 240.0
"""Longest visit to one peer."""
FAILURES = (OSError, RuntimeError, TimeoutError, NotInstalledError, DevstackError)


class Comparison:
    """What was measured so far, and how much time is left."""

    def __init__(self, names: Sequence[str], minutes: float, seconds: dict[int, float]) -> None:
        self.rounds: dict[str, list[list[Speed]]] = {name: [] for name in names}
        self.recovered: dict[str, Recovery] = {}
        self.missing: dict[str, str] = {}
        self._seconds = seconds
        self._longest: dict[str, float] = {}
        self._until = time.monotonic() + 60 * minutes

    async def measure(self, rounds: int, *, kill: bool) -> None:
        """A first round of all, then the kills, then more rounds while there is time."""
        for number in range(rounds):
            print(f"round {number + 1} of at most {rounds}", flush=True)
            for name in self.rounds:
                await self._visit(name)
            if number == 0 and kill:
                print("kill -9 of the workers at half time", flush=True)
                for name in self.rounds:
                    await self._kill(name)

    def _has_time(self, name: str) -> bool:
        left = self._until - time.monotonic()
        if self._longest.get(name, 0.0) > left:
            print(f"  {name} is passed over: {max(0, left):.0f} s are left", flush=True)
            return False
        return name not in self.missing

    async def _visit(self, name: str) -> None:
        if not self._has_time(name):
            return
        began = time.monotonic()
        try:
            async with asyncio.timeout(VISIT_S):
                self.rounds[name].append(await speed(RIGS[name], self._seconds))
        except FAILURES as failed:
            self._failed(name, failed)
        self._longest[name] = max(self._longest.get(name, 0.0), time.monotonic() - began)

    async def _kill(self, name: str) -> None:
        if not self._has_time(name):
            return
        try:
            async with asyncio.timeout(VISIT_S):
                found = await recovery(RIGS[name], report.rate_of(self.rounds[name], 10))
        except FAILURES as failed:
            self._failed(name, failed)
            return
        self.recovered[name] = found
        print(
            f"  {name:14} the last of {found.left} left ended after {found.seconds:.1f} s; "
            f"{found.lost} lost, {len(found.torn)} torn, {found.doubled} doubled",
            flush=True,
        )

    def _failed(self, name: str, failed: BaseException) -> None:
        print(f"  {name} failed: {type(failed).__name__} {failed}", flush=True)
        if not self.rounds[name]:
            self.missing[name] = f"it failed here ({type(failed).__name__}: {failed})"


def installed(kind: type[Rig], missing: dict[str, str]) -> bool:
    """Return whether a peer is there now; note why it is not."""
    try:
        if kind.installed_as:
            install(kind.installed_as)
    except NotInstalledError as reason:
        missing[kind.name] = f"it could not be installed ({reason})"
        print(f"{kind.title} is left out: {reason}", flush=True)
        return False
    return True


def main() -> int:
    """Install, measure, print; write RESULTS.md only if asked to."""
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, default=3, help="most rounds (default 3)")
    parser.add_argument("--minutes", type=float, default=10.0, help="time after installing")
    parser.add_argument("--only", default=",".join(RIGS), help="peers, commas between")
    parser.add_argument("--no-kill", action="store_true", help="leave the recovery out")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in RIGS]:
        parser.error(f"there is no peer {unknown[0]}: use some of {', '.join(RIGS)}")
    missing: dict[str, str] = {}
    there = [name for name in names if installed(RIGS[name], missing)]
    seconds = QUICK if options.quick else SECONDS
    comparison = Comparison(there, options.minutes, seconds)
    asyncio.run(
        comparison.measure(1 if options.quick else options.rounds, kill=not options.no_kill)
    )
    text = report.whole(comparison.rounds, comparison.recovered, missing | comparison.missing)
    print("\n" + text)
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
