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
    """Return the share of passed tests. Microsoft's own skips and xfails do not count."""
    passed, failed = (count_of(results, outcome) for outcome in ("passed", "failed"))
    return passed / (passed + failed) if passed + failed else 0.0


def count_of(results: Sequence[Result], outcome: str) -> int:
    """Count one outcome."""
    return sum(result.outcome == outcome for result in results)


def unexpected(results: Sequence[Result], lists: Lists) -> set[str]:
    """Return the names of the tests that failed although expected.txt does not name them."""
    return {r.name for r in results if r.outcome == "failed" and r.name not in lists.expected}


def second_try(results: Sequence[Result], retries: Sequence[Result]) -> list[Result]:
    """Replace the results of those tests that were tried a second time."""
    later = {
        retry.name: replace(retry, reason=SECOND) if retry.outcome == "passed" else retry
        for retry in retries
    }
    return [later.get(result.name, result) for result in results]


def problems(
    results: Sequence[Result], lists: Lists, *, chosen: Collection[str], existing: Collection[str]
) -> list[str]:
    """Return a sentence for each difference from the lists; none if all is well.

    ``existing`` are the names of the tests in Microsoft's files, ``chosen`` those that were run.
    """
    sentences = []
    share = share_of(results)
    if share < GOAL:
        sentences.append(f"{share:.1%} of what counts passed, and the goal is {GOAL:.0%}.")
    outcome_of = {result.name: result.outcome for result in results}
    sentences += [
        f"{name} failed and expected.txt does not name it: fix the broker, or give a reason there."
        for name in sorted(unexpected(results, lists))
    ]
    sentences += [
        f"{name} passes now: take it out of expected.txt."
        for name in lists.expected
        if outcome_of.get(name) == "passed"
    ]
    sentences += [
        f"{name} gave no result: look into its process's log."
        for name in sorted(set(chosen) - set(outcome_of))
    ]
    sentences += [
        f"{name} is not a test of azure-servicebus {VERSION}: take it out of the list."
        for name in (*lists.deselected, *lists.expected)
        if name not in existing
    ]
    return sentences


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
        file_results = [result for result in results if result.name.startswith(file + "::")]
        counts = [str(count_of(file_results, outcome)) for outcome in OUTCOMES]
        lines.append(f"| {file} | {' | '.join(counts)} |")
    lines += ["", "| did not pass at once | outcome | reason |", "|---|---|---|"]
    for result in results:
        if result.outcome != "passed" or result.reason:
            reason = lists.expected.get(result.name) or result.reason
            lines.append(f"| {result.name} | {result.outcome} | {_cell(reason)} |")
    lines += ["", "| deselected | reason |", "|---|---|"]
    lines += [f"| {name} | {_cell(reason)} |" for name, reason in lists.deselected.items()]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace(str(ROOT), "").replace("|", "/").strip() or "no reason given"
