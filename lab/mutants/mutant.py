"""A mutant: one change of one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one file. The file must contain ``old`` exactly once.

    ``tests`` are the files, or single tests, that must find it. Without them, seeds of the
    simulation look for it.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...] = ()

    def apply(self, root: Path) -> None:
        """Change a copy of the code."""
        file = root / self.path
        text = file.read_text("utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.path} has its text {text.count(self.old)} times")
        file.write_text(text.replace(self.old, self.new), "utf-8")
