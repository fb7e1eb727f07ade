"""Stand-ins of ``az``, ``azd`` and ``gh`` that behave as their sources say.

A ``Cloud`` is a directory for PATH with these commands, and what they share: one state, a JSON
file. Each module has the rules of some commands: by the words that a call begins with, a function
of the state and the call that returns what the command prints. It raises ``Refused`` to fail. The
longest beginning decides. Each rule names the source of what it imitates.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

State = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
SCRIPT = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.infra.stand_ins.__main__ import main
main(sys.argv)
"""


class Refused(Exception):  # noqa: N818  it is an answer
    """The command ends with code 1 and prints this text as its error."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its words, and what it was given on stdin, if it reads that."""

    words: list[str]
    stdin: str = ""
    options: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        pairs = zip(self.words, [*self.words[1:], "--"], strict=True)
        options = {a: "" if b.startswith("--") else b for a, b in pairs if a.startswith("--")}
        object.__setattr__(self, "options", options)


Rule = Callable[[State, Call], object]
"""Returns what is printed: a text as it is, any other value as JSON, None for nothing."""
Rules = Mapping[str, Rule]


class Cloud:
    """A directory with the commands. Tests give the first state, and look at the last."""

    def __init__(self, path: Path, **state: Any) -> None:
        self.path = path
        (path / "state.json").write_text(json.dumps({"calls": [], **state}))
        for name in ("az", "azd", "gh"):
            (path / name).write_text(SCRIPT)
            (path / name).chmod(0o755)

    @property
    def state(self) -> State:
        """What there is now."""
        return dict(json.loads((self.path / "state.json").read_text()))

    def called(self, begins: str = "") -> list[Call]:
        """Return the calls that begin so, in order."""
        calls = [Call(words, stdin) for words, stdin in self.state["calls"]]
        return [call for call in calls if " ".join(call.words).startswith(begins)]


@contextmanager
def changing(path: Path) -> Iterator[State]:
    """Yield the state of a cloud, and keep what was changed, also if the command fails."""
    state: State = json.loads(path.read_text())
    try:
        yield state
    finally:
        path.write_text(json.dumps(state))
