"""The results of Microsoft's own tests: the table, and the unexpected results."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

LISTS = Path(__file__).resolve().parent
ROOT = LISTS.parents[2]
VERSION = "7.15.0"
GOAL = 0.97
_PREFACE = (
    "Written by `make test-sdk`. Counted: what passed and what failed. Not counted: what "
    "Microsoft's own marks skip or expect to fail, and what is deselected below."
)
SECOND = "at a second try, alone"
OUTCOMES = ("passed", "failed", "skipped", "xfailed")


@dataclass(frozen=True, kw_only=True)
class Result:
    """How one test went: ``outcome`` is one of `OUTCOMES`, ``name`` is file::test."""

    name: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Lists:
    """The two checked-in lists: test name to reason."""

    deselected: dict[str, str]
    expected: dict[str, str]

    @classmethod
    def read(cls, folder: Path = LISTS) -> "Lists":
        """Read both. Raises ValueError for a line without a reason."""
        return cls(_listed(folder / "deselected.txt"), _listed(folder / "expected.txt"))


def _listed(path: Path) -> dict[str, str]:
    entries = {}
    for line in path.read_text().splitlines():
        test, _, reason = line.partition("#")
        if not test.strip():
            continue
        if not reason.strip():
            raise ValueError(f"{path.name}: {test.strip()} has no reason; write one behind a #")
        entries[test.strip()] = reason.strip()
    return entries


def share_of(results: Sequence[Result]) -> float:
    """Give the passed among those that count: all but Microsoft's own skips and xfails."""
    passed, failed = (count_of(results, outcome) for outcome in ("passed", "failed"))
    return passed / (passed + failed) if passed + failed else 0.0


def count_of(results: Sequence[Result], outcome: str) -> int:
    """Count one outcome."""
    return sum(result.outcome == outcome for result in results)


def unexpected(results: Sequence[Result], lists: Lists) -> set[str]:
    """Give the names of the tests that failed and are not known to."""
    return {r.name for r in results if r.outcome == "failed" and r.name not in lists.expected}


def second_try(first: Sequence[Result], again: Sequence[Result]) -> list[Result]:
    """Put the results of a second try in the place of the first ones."""
    later = {
        one.name: replace(one, reason=SECOND) if one.outcome == "passed" else one for one in again
    }
    return [later.get(one.name, one) for one in first]


def problems(
    results: Sequence[Result], lists: Lists, *, chosen: Collection[str], found: Collection[str]
) -> list[str]:
    """Say what is not as the lists have it, a sentence each; none where all is well.

    ``found`` are the names that Microsoft's files hold, ``chosen`` those that were run.
    """
    told = []
    share = share_of(results)
    if share < GOAL:
        told.append(f"{share:.1%} of what counts passed, and the goal is {GOAL:.0%}.")
    outcome_of = {result.name: result.outcome for result in results}
    told += [
        f"{name} failed and expected.txt does not name it: fix the broker, or give a reason there."
        for name in sorted(unexpected(results, lists))
    ]
    told += [
        f"{name} passes now: take it out of expected.txt."
        for name in lists.expected
        if outcome_of.get(name) == "passed"
    ]
    told += [
        f"{name} gave no result: look into its process's log."
        for name in sorted(set(chosen) - set(outcome_of))
    ]
    told += [
        f"{name} is not a test of azure-servicebus {VERSION}: take it out of the list."
        for name in (*lists.deselected, *lists.expected)
        if name not in found
    ]
    return told


def table(results: Sequence[Result], lists: Lists) -> str:
    """Write the table: counts, counts by file, then every test that did not pass or did not run."""
    total = [str(count_of(results, outcome)) for outcome in OUTCOMES]
    files = sorted({result.name.partition("::")[0] for result in results})
    lines = [
        f"# azure-servicebus {VERSION}: its own queue and session tests against the broker",
        "",
        _PREFACE,
        "",
        "| passed | failed | skipped | expected to fail | deselected | passed of what counts |",
        "|---|---|---|---|---|---|",
        f"| {' | '.join([*total, str(len(lists.deselected)), f'{share_of(results):.1%}'])} |",
        "",
        "| file | passed | failed | skipped | expected to fail |",
        "|---|---|---|---|---|",
    ]
    for file in files:
        here = [result for result in results if result.name.startswith(file + "::")]
        counts = [str(count_of(here, outcome)) for outcome in OUTCOMES]
        lines.append(f"| {file} | {' | '.join(counts)} |")
    lines += ["", "| did not pass at once | outcome | reason |", "|---|---|---|"]
    for result in results:
        if result.outcome != "passed" or result.reason:
            why = lists.expected.get(result.name) or result.reason
            lines.append(f"| {result.name} | {result.outcome} | {_cell(why)} |")
    lines += ["", "| deselected | reason |", "|---|---|"]
    lines += [f"| {name} | {_cell(why)} |" for name, why in lists.deselected.items()]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace(str(ROOT), "").replace("|", "/").strip() or "no reason given"
