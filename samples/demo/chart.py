"""How fast it went: orders ended and faults a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class History:
    """The counts of each second, and the times at which processes were killed."""

    kills: list[float] = field(default_factory=list)
    _counts: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])

    def note(self, second: float, ended: int, faults: int) -> None:
        """Note how many orders had ended, and how many calls had a fault, at this second."""
        missing = int(second) + 1 - len(self._counts)
        self._counts += [self._counts[-1]] * missing
        self._counts[-1] = (ended, faults)

    @property
    def seconds(self) -> int:
        """How many seconds have been counted."""
        return len(self._counts)

    def ended(self) -> list[int]:
        """Return the orders that ended in each second."""
        return _steps([ended for ended, _ in self._counts])

    def faults(self) -> list[int]:
        """Return the calls with a fault in each second."""
        return _steps([faults for _, faults in self._counts])

    def mean(self) -> float:
        """Return the orders that ended a second, over the whole time."""
        return self._counts[-1][0] / self.seconds


def blocks(values: Sequence[int], width: int) -> str:
    """Return the last values as a row of blocks, the highest one full."""
    window = values[-width:]
    highest = max([*window, 1])
    return "".join(_BLOCKS[-(-value * (len(_BLOCKS) - 1) // highest)] for value in window)


def bars(values: Sequence[int], width: int, height: int) -> list[str]:
    """Return a chart of text, the highest line first; the values are drawn into ``width``."""
    means = _means(values, -(-len(values) // width))
    highest = max([*means, 1e-9])
    full = len(_BLOCKS) - 1
    filled = [round(value / highest * height * full) for value in means]
    return [
        "".join(_BLOCKS[max(0, min(full, parts - row * full))] for parts in filled).rstrip()
        for row in reversed(range(height))
    ]


def _steps(totals: Sequence[int]) -> list[int]:
    return [after - before for before, after in zip([0, *totals], totals, strict=False)]


def _means(values: Sequence[int], width: int) -> list[float]:
    parts = [values[at : at + width] for at in range(0, len(values), width)]
    return [sum(part) / len(part) for part in parts]
