"""The display of the demo while it runs: a live panel on a terminal, else plain lines."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from samples.demo.tally import Tally

LINE_EVERY_S = 5.0
EVENTS_MAX = 6


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
