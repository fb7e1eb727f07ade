"""``sas docs``: print the pages of the documentation, which are in the wheel."""

from __future__ import annotations

import argparse

from sas.cli import output
from sas.cli.arguments import Subcommand
from sas.distribution import files
from sas.operate.errors import UsageError
from sas.project import PAGES, sources

DOCS = """\
Print a page of the documentation, or list all pages. A text of the package that names
docs/operating.md means the page that this prints: sas docs operating.

  sas docs
  sas docs your-own-workflow
  sas docs docs/adr/0012
  sas docs claim
"""
_KEPT_ENDINGS = (".md", ".schema.json", ".json", ".py")


def pages() -> dict[str, str]:
    """Return the path of each page, by its short name."""
    paths = sources((*PAGES, "infra/README.md"))
    return dict(sorted(((_short(path), path) for path in paths), key=lambda page: "/" in page[0]))


def page_of(name: str) -> str | None:
    """Return the path of the page that a person or a text means, if there is one."""
    paths, short = pages(), _short(name)
    beginnings = [path for page, path in paths.items() if page.startswith(f"{short}-")]
    if short in paths:
        return paths[short]
    return paths.get(f"{short}/README") or (beginnings[0] if len(beginnings) == 1 else None)


def _short(name: str) -> str:
    name = name.removeprefix("docs/").removeprefix("samples/").strip("/").removeprefix("claim/")
    for ending in _KEPT_ENDINGS:
        name = name.removesuffix(ending)
    return name


def _add_docs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("page", nargs="?", metavar="PAGE")


def _docs(arguments: argparse.Namespace) -> int:
    if arguments.page is None:
        for name, path in pages().items():
            lines = (files() / path).read_text(encoding="utf-8").splitlines()
            titles = (line.strip('# "') for line in lines if line.startswith(("# ", '"""')))
            output.say(f"{name:<44}{next(titles, '')}".rstrip())
        return 0
    page = page_of(arguments.page)
    if page is None:
        raise UsageError(f"there is no page {arguments.page!r}: `sas docs` lists them")
    output.say((files() / page).read_text(encoding="utf-8").rstrip())
    return 0


VERBS = (
    Subcommand(
        name="docs",
        summary="print a page of the documentation",
        description=DOCS,
        add_arguments=_add_docs,
        run=_docs,
        connects=False,
    ),
)
