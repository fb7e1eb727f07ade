"""Host processes by group: which functions run in which process."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devstack.children import Child


@dataclass(eq=False)
class HostProcess:
    """One host process of a stack: which group, which functions, where."""

    group: str
    child: Child
    functions: list[str] = field(default_factory=list)
    http_port: int | None = None
    secondary: bool = False
    """It leaves timers and HTTP to another process of its group."""

    @property
    def pid(self) -> int:
        """Its process id; `Stack.kill` takes it."""
        return self.child.pid

    @property
    def alive(self) -> bool:
        """Whether it runs now."""
        return self.child.alive


def named(
    groups: Sequence[Sequence[str]] | Mapping[str, Sequence[str]] | None,
) -> list[tuple[str | None, Sequence[str]]]:
    """Groups with the names given to them; None where `start_group` makes one up."""
    if groups is None:
        return [("all", [])]
    if isinstance(groups, Mapping):
        return list(groups.items())
    return [(None, functions) for functions in groups]


def file_name(group: str) -> str:
    """The group's name as far as it is fit for a file."""
    return "".join(c if c.isalnum() or c in "-_+" else "-" for c in group)[:80]


def environment() -> dict[str, str]:
    """This process's, with this checkout importable from any directory."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
