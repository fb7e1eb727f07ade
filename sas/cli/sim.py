"""``sas sim``: play an application's sagas with drawn orders and faults."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import msgspec

from sas.cli import application, output
from sas.cli import arguments as args
from sas.cli.application import App
from sas.cli.arguments import Subcommand
from sas.cli.output import ProgressLine
from sas.codec.record import to_line
from sas.environment import settings_of
from sas.operate.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sas.testing.stories import Result, Stories

DESCRIPTION = """\
Play the sagas of an application in virtual time: your own functions, in the real engine, with
models of the services. Each story draws orders, callbacks and faults: answers that are lost, calls
that fail or hang, functions that die between any two steps, messages that come twice, services that
are away or refuse, restarts, cancelled orders. Every sixth story cancels its order during a step:
each step that has an undo has its turn. No service and no file of answers is needed: a
service answers with a value of the type that your function asks for.

It finds an error in a function, an effect that happens twice, an undo that leaves its effect, an
order that never ends. It stops at the first of them, and prints it as a test for the kit
(sas.testing). The same seed always plays the same story: --seed prints it.

Orders are drawn from the order's type. If [tool.sas] in pyproject.toml names a file of example
orders (orders = "orders.jsonl", in the form of `sas submit`), those that fit a saga are taken.

Exit code 0: nothing is wrong. 1: something is. 2: the app cannot be loaded.

  sas sim
  sas sim --seeds 5000
  sas sim --seed 42
"""
EXAMPLES_MAX = 200
"""How many example orders are read at most."""
NEEDS_MAX = 5
"""How many reasons for the state Error are printed: the most frequent ones."""
STATES = ("Processed", "Compensated", "Error", "Rejected")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    application.add_argument(parser)
    whole = functools.partial(args.number, whole=True)
    parser.add_argument("--seeds", type=whole("seeds", 1, 100_000_000), default=200, metavar="N")
    parser.add_argument("--first", type=whole("a seed", 0, 999_999_999), default=0, metavar="SEED")
    parser.add_argument("--jobs", type=whole("processes", 1, 256), metavar="J")
    parser.add_argument(
        "--seed", type=whole("a seed", 0, 999_999_999), metavar="SEED", help="tell its story"
    )
    args.add_json(parser, "JSON lines: the story that fails, or the totals")


def _run(arguments: argparse.Namespace) -> int:
    from sas.testing.platform import PlatformFileError  # noqa: PLC0415  slow to import
    from sas.testing.stories import NoOrderError  # noqa: PLC0415

    app = application.named(arguments.app)
    try:
        stories = stories_of(app)
        if arguments.seed is not None:
            return _play_one(stories, arguments)
        return _play_many(app, stories, arguments)
    except (PlatformFileError, NoOrderError) as error:
        raise UsageError(str(error)) from None


def stories_of(app: App) -> Stories:
    """Return the stories of an application.

    Raises:
        UsageError: it cannot be loaded, or its example orders cannot be read.
    """
    from sas.saga import Saga, sagas_of  # noqa: PLC0415
    from sas.testing.stories import Stories  # noqa: PLC0415

    settings = settings_of(app.folder)
    missing = {name: text for name, text in settings.items() if name not in os.environ}
    with patch.dict(os.environ, missing):
        application.load(app)
    module_name, _, name = app.name.partition(":")
    module = sys.modules[module_name]
    sagas = [getattr(module, name)] if name else sagas_of(module)
    if not isinstance(sagas[0], Saga):
        raise UsageError(f"{app.label} is no saga: name a module with sagas, or one of them")
    examples = () if app.orders is None else _examples(app.folder / app.orders)
    return Stories(module=module, sagas=sagas, directory=app.folder, examples=examples)


def _examples(path: Path) -> tuple[bytes, ...]:
    """Return the contents of the first orders of a file. Its form is that of ``sas submit``."""
    from sas.cli.reading import Defaults, InputError, read_items  # noqa: PLC0415  slow to import

    try:
        with path.open("rb") as source:
            items = islice(read_items(source, Defaults("responses-of-nobody", str)), EXAMPLES_MAX)
            return tuple(msgspec.json.encode(item.order.order) for item in items)
    except (OSError, ValueError, InputError) as error:
        raise UsageError(f"{path} cannot be read as orders: {error}") from None


def _played(stories: Stories, seed: int) -> Result:
    return stories.play(stories.story(seed))


def _play_one(stories: Stories, arguments: argparse.Namespace) -> int:
    result = _played(stories, arguments.seed)
    if arguments.json:
        ends = [{"Saga": saga, "State": state} for saga, state in result.ends]
        output.say(to_line({"Seed": result.seed, "Story": result.text, "Ends": ends}))
    else:
        for line in (*result.text, *(f"{saga}: {state}" for saga, state in result.ends)):
            output.say(output.row([line]))
    return _tell_failure(stories, result, arguments) if result.error else 0


def _play_many(app: App, stories: Stories, arguments: argparse.Namespace) -> int:
    from sas.testing.run import jobs_here, played  # noqa: PLC0415

    ends: Counter[tuple[str, str]] = Counter()
    needs: list[tuple[str, str]] = []
    count = 0
    progress = ProgressLine(lambda: f"{count:,} of {arguments.seeds:,} stories")
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    load: Callable[[], Stories] = functools.partial(stories_of, app)
    failure: Result | None = None
    with progress.shown():
        for result in played(load, _played, seeds, arguments.jobs or jobs_here()):
            if result.error:
                failure = result
                break
            count += 1
            ends.update(result.ends)
            needs += result.needs
            progress()
    if failure is not None:
        return _tell_failure(stories, failure, arguments)
    if arguments.json:
        rows = [
            {"Saga": name, "State": state, "Orders": orders}
            for (name, state), orders in sorted(ends.items())
        ]
        output.say(to_line({"Stories": count, "Ends": rows}))
        return 0
    names = sorted({name for name, _ in ends})
    table = [[name, *(f"{ends[name, state]:,}" for state in STATES)] for name in names]
    for line in output.table(["saga", *(state.lower() for state in STATES)], table):
        output.say(line)
    for line in _reasons(needs):
        output.say(output.row([line]))
    workflows = "workflow" if len(names) == 1 else "workflows"
    output.say(output.row([f"Nothing wrong with your {workflows} in {count:,} stories."]))
    return 0


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


def _tell_failure(stories: Stories, result: Result, arguments: argparse.Namespace) -> int:
    """Print what is wrong, and the shortest test that shows it."""
    from sas.testing.stories import shrunk  # noqa: PLC0415

    story = shrunk(stories.story(result.seed), lambda other: bool(stories.play(other).error))
    error, test = stories.play(story).error, stories.test_of(story)
    if arguments.json:
        output.say(to_line({"Seed": result.seed, "Error": error, "Test": test}))
        return 1
    output.say(f"Story {result.seed} fails:")
    for line in error.splitlines():
        output.say(output.row([line]))
    output.say("This test shows it:")
    output.say("")
    for line in test.splitlines():
        output.say(line)
    return 1


VERBS = (
    Subcommand(
        name="sim",
        summary="play the application's sagas with drawn orders and faults",
        description=DESCRIPTION,
        add_arguments=_add_arguments,
        run=_run,
        connects=False,
    ),
)
