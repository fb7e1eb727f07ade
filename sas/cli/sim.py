"""``sas sim``: play an application's sagas with drawn orders and faults."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from sas.cli import application, options, screen
from sas.cli.application import App
from sas.codec.record import to_line
from sas.operate.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sas.testing.stories import Result, Stories

EXAMPLES_MAX = 200
"""How many example orders are read at most."""
NEEDS_MAX = 5
"""How many reasons for the state Error are printed: the most frequent ones."""
SEED_MAX = 999_999_999
STATES = ("Processed", "Compensated", "Error", "Rejected")


def sim(  # each is an option
    *,
    app: options.App = None,
    seeds: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=100_000_000, help="How many stories."),
    ] = 200,
    first: Annotated[
        int, typer.Option(metavar="SEED", min=0, max=SEED_MAX, help="Begin with this story.")
    ] = 0,
    seed: Annotated[
        int | None,
        typer.Option(metavar="SEED", min=0, max=SEED_MAX, help="Tell only this story."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=256, help="Processes (default: one for each core)."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Play your sagas in virtual time, with drawn orders and faults.

    \b
      sas sim
      sas sim --seeds 5000
      sas sim --seed 42       (tell one story, and check it)

    Your own functions run in the real engine, with models of the services. Each story draws orders,
    callbacks and faults: lost answers, calls that fail or hang, functions that die between any two
    steps, messages that come twice, services that are away or refuse, restarts, cancelled orders.

    It finds an error in a function, an effect that happens twice, an undo that leaves its effect,
    an order that never ends. It stops at the first of them (exit code 1), and prints a test for the
    kit (sas.testing) that shows it. The same seed always plays the same story.

    Orders are drawn from their type, and from the file that [tool.sas] names as orders.
    """
    from sas.testing.platform import PlatformFileError  # noqa: PLC0415  slow to import
    from sas.testing.stories import NoOrderError  # noqa: PLC0415

    named = application.named(app)
    try:
        stories = stories_of(named)
        if seed is not None:
            failure = _play_one(stories, seed, as_json=json)
        else:
            load = functools.partial(stories_of, named)
            failure = _play_many(load, range(first, first + seeds), jobs, as_json=json)
        if failure is not None:
            _tell_failure(stories, failure, as_json=json)
            raise typer.Exit(1)
    except (PlatformFileError, NoOrderError) as error:
        raise UsageError(str(error)) from None


def stories_of(app: App) -> Stories:
    """Return the stories of an application.

    Raises:
        UsageError: it cannot be loaded, or its example orders cannot be read.
    """
    from sas.saga import Saga, sagas_of  # noqa: PLC0415
    from sas.testing.stories import Stories  # noqa: PLC0415

    with application.local_settings(app.folder):
        application.load(app)
    module_name, _, name = app.name.partition(":")
    module = sys.modules[module_name]
    sagas = [getattr(module, name)] if name else sagas_of(module)
    if not isinstance(sagas[0], Saga):
        raise UsageError(f"{app.label} is no saga: name a module with sagas, or one of them")
    orders = app.table.orders
    examples = () if orders is None else _examples(app.folder / orders)
    return Stories(module=module, sagas=sagas, directory=app.folder, examples=examples)


def _examples(path: Path) -> tuple[bytes, ...]:
    """Return the contents of the first orders of a file. Its form is that of ``sas submit``."""
    from sas.operate.submissions import Defaults, InputError, read_items  # noqa: PLC0415  slow to import

    try:
        with path.open("rb") as source:
            items = islice(read_items(source, Defaults("responses-of-nobody", str)), EXAMPLES_MAX)
            return tuple(msgspec.json.encode(item.order.order) for item in items)
    except (OSError, ValueError, InputError) as error:
        raise UsageError(f"{path} cannot be read as orders: {error}") from None


def _played(stories: Stories, seed: int) -> Result:
    return stories.play(stories.story(seed))


def _play_one(stories: Stories, seed: int, *, as_json: bool) -> Result | None:
    """Tell one story; return its result if something is wrong."""
    result = _played(stories, seed)
    if as_json:
        ends = [{"Saga": saga, "State": state} for saga, state in result.ends]
        screen.say(to_line({"Seed": result.seed, "Story": result.text, "Ends": ends}))
    else:
        for line in (*result.text, *(f"{saga}: {state}" for saga, state in result.ends)):
            screen.sentence(line)
    return result if result.error else None


def _play_many(
    load: Callable[[], Stories], seeds: range, jobs: int | None, *, as_json: bool
) -> Result | None:
    """Play stories, and print how their orders ended; return the first that fails."""
    from sas.testing.run import jobs_here, played  # noqa: PLC0415

    ends: Counter[tuple[str, str]] = Counter()
    needs: list[tuple[str, str]] = []
    with screen.progress("stories", len(seeds)) as tell:
        for count, result in enumerate(played(load, _played, seeds, jobs or jobs_here()), 1):
            if result.error:
                return result
            ends.update(result.ends)
            needs += result.needs
            tell(count)
    if as_json:
        rows = [
            {"Saga": name, "State": state, "Orders": orders}
            for (name, state), orders in sorted(ends.items())
        ]
        screen.say(to_line({"Stories": len(seeds), "Ends": rows}))
        return None
    names = sorted({name for name, _ in ends})
    rows_of_sagas = [[name, *(f"{ends[name, state]:,}" for state in STATES)] for name in names]
    screen.table(["Saga", *STATES], rows_of_sagas)
    for line in _reasons(needs):
        screen.sentence(line)
    workflows = "workflow" if len(names) == 1 else "workflows"
    screen.sentence(f"Nothing wrong with your {workflows} in {len(seeds):,} stories.")
    return None


def _reasons(needs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield why orders are in Error, the most frequent first: a line for each step and code.

    The sentence is that of the first order, because sentences may quote their orders.
    """
    counts: Counter[tuple[str, str]] = Counter()
    sentences: dict[tuple[str, str], str] = {}
    for saga, need in needs:
        reason = saga, need.partition(": ")[0]
        counts[reason] += 1
        sentences.setdefault(reason, need)
    for (saga, need), orders in counts.most_common(NEEDS_MAX):
        yield f"{saga}: {orders:,} in error: {sentences[saga, need]}"


def _tell_failure(stories: Stories, result: Result, *, as_json: bool) -> None:
    """Print what is wrong, and the shortest test that shows it."""
    from sas.testing.stories import shrunk  # noqa: PLC0415

    story = shrunk(stories.story(result.seed), lambda other: bool(stories.play(other).error))
    error, test = stories.play(story).error, stories.test_of(story)
    if as_json:
        screen.say(to_line({"Seed": result.seed, "Error": error, "Test": test}))
        return
    screen.sentence(f"Story {result.seed} fails:")
    for line in error.splitlines():
        screen.sentence(line)
    screen.sentence("This test shows it:")
    screen.say(f"\n{test.rstrip()}")
