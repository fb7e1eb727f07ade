"""One test over many values of one branch, in place of one test for each value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def each(
    cases: Iterable[Any] | Mapping[str, Any],
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Return a decorator: one test that plays every case. A failure names its case.

    A tuple is spread over the arguments of the test. Of a mapping, the test gets each value, and a
    failure names its key.
    """
    named = dict(cases) if isinstance(cases, Mapping) else {repr(case): case for case in cases}

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            assert named, "a test without a case"
            for name, case in named.items():
                try:
                    check(*case) if isinstance(case, tuple) else check(case)
                except BaseException as error:
                    error.add_note(f"in the case: {name[:300]}")
                    raise

        test.__name__, test.__doc__, test.__module__ = (
            check.__name__,
            check.__doc__,
            check.__module__,
        )
        return test

    return decorate
