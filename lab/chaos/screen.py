"""What a run shows while it runs: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lab.chaos.faults import Fault

LINE_EVERY_S = 5.0


@dataclass
class Screen:
    """Shows the orders and the fault of the moment."""

    console: Console
    orders: int
    faults: int
    begun: float = field(default_factory=time.monotonic)
    _now: str = "none"
    _live: Live | None = None
    _last: float = 0.0

    def begin(self) -> None:
        """Start the live line."""
        if self.console.is_terminal:
            self._live = Live(Text(""), console=self.console, refresh_per_second=4)
            self._live.start()

    def end(self) -> None:
        """Stop the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Print a line with its time."""
        self.console.print(
            f"{time.monotonic() - self.begun:6.1f} s  {text}", highlight=False, soft_wrap=True
        )

    def fault(self, number: int, fault: Fault) -> None:
        """Show that a fault begins."""
        self._now = str(fault)
        self.say(f"fault {number}/{self.faults}: {fault}")

    def fault_over(self) -> None:
        """Show that no fault is on."""
        self._now = "none"

    def update(self, submitted: int, ended: int) -> None:
        """Show the current numbers."""
        line = (
            f"orders in {submitted}/{self.orders}, ended {ended}, in force {submitted - ended}, "
            f"fault now: {self._now}"
        )
        if self._live is not None:
            self._live.update(Text(f"{time.monotonic() - self.begun:6.1f} s  {line}"))
        elif time.monotonic() - self._last >= LINE_EVERY_S:
            self._last = time.monotonic()
            self.say(line)
