"""What `make test-sdk` makes of its results: the table, and when it fails."""

from devstack.tests.sdk.report import ROOT, Lists, Result, problems, second_try, table, unexpected

LISTS = Lists({"a.py::topics": "topics"}, {"a.py::stale": "stale: old signature"})
PASSED = [Result(name=f"a.py::t{number}", outcome="passed") for number in range(99)]
STALE = Result(name="a.py::stale", outcome="failed", reason="TypeError")


def sentences_of(results: list[Result], lists: Lists = LISTS) -> list[str]:
    names = {result.name for result in [*results, STALE]}
    return problems(results, lists, chosen=names, existing={*names, *lists.deselected})


def test_all_is_well_where_only_what_is_listed_fails() -> None:
    assert sentences_of([*PASSED, STALE]) == []


def test_a_failure_that_is_not_listed_is_reported_however_high_the_share() -> None:
    [sentence] = sentences_of([*PASSED, STALE, Result(name="a.py::new", outcome="failed")])
    assert sentence.startswith("a.py::new failed and expected.txt does not name it")


def test_the_table_gives_counts_and_the_reason_of_each_failure_and_each_deselection() -> None:
    skipped = Result(name="b.py::skips", outcome="skipped", reason=f"{ROOT}/x | not here")
    text = table([*PASSED, STALE, skipped], LISTS)
    assert "| 99 | 1 | 1 | 0 | 1 | 99.0% |" in text
    assert "| a.py | 99 | 1 | 0 | 0 |" in text
    assert "| a.py::stale | failed | stale: old signature |" in text
    assert "| b.py::skips | skipped | /x / not here |" in text
    assert "| a.py::topics | topics |" in text
    assert str(ROOT) not in text


def test_a_test_that_passes_at_a_second_try_counts_and_is_reported() -> None:
    failed = [
        Result(name="a.py::late", outcome="failed", reason="timeout"),
        Result(name="a.py::never", outcome="failed", reason="wrong"),
    ]
    assert unexpected([*PASSED, STALE, *failed], LISTS) == {"a.py::late", "a.py::never"}
    retries = [
        Result(name="a.py::late", outcome="passed"),
        Result(name="a.py::never", outcome="failed", reason="wrong again"),
    ]
    results = second_try([*PASSED, *failed], retries)
    assert [result.outcome for result in results[-2:]] == ["passed", "failed"]
    text = table(results, LISTS)
    assert "| a.py::late | passed | at a second try, alone |" in text
    assert "| a.py::never | failed | wrong again |" in text
