"""Every link between our pages leads somewhere, and what they name is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "infra", "samples", "lab", "devstack", "sas", "orders", "tools")
PAGES = sorted(
    page.relative_to(ROOT)
    for pages in (ROOT.glob("*.md"), *((ROOT / folder).rglob("*.md") for folder in FOLDERS))
    for page in pages
    if "node_modules" not in page.parts
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
PATH = re.compile(
    r"`((?:sas|orders|devstack|samples|infra|tests|tools|docs|lab)/[\w./-]+?)(?:::\w+)?`"
)
DEFINED = re.compile(r"((?:`\w+`(?:, | and )?)+) in `(sas/[\w/]+\.py)`")
MAKE = re.compile(r"(?:`| {4})make ([a-z-]+)\b")
MODULE = re.compile(r"python -m ((?:sas|devstack|samples|tools|lab|orders)[\w.]*)")


def prose(page: Path) -> str:
    return CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    found: dict[str, int] = {}
    names = []
    for heading in re.findall(r"^#+ +(.+?)\s*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = found.get(slug, 0)
        found[slug] = number + 1
        names.append(f"{slug}-{number}" if number else slug)
    return frozenset(names)


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in LINK.findall(prose(page)):
            if not re.match(r"[a-z]+:", target):
                yield page, target


def named(pattern: re.Pattern[str]) -> list[tuple[Path, str]]:
    """Return what pages say, code blocks included."""
    texts = ((page, (ROOT / page).read_text(encoding="utf-8")) for page in PAGES)
    return sorted({(page, name) for page, text in texts for name in pattern.findall(text)})


def test_a_link_leads_to_a_file_and_to_a_heading_that_are_there() -> None:
    found = [wrong for page, target in sorted(set(links())) if (wrong := wrong_link(page, target))]
    assert found == []


def wrong_link(page: Path, target: str) -> str | None:
    """Return what is wrong with a link."""
    path, _, anchor = target.partition("#")
    to = (ROOT / page.parent / path).resolve() if path else ROOT / page
    if not to.exists():
        return f"{page}: {path} is not there"
    if anchor and anchor not in (there := anchors(to.relative_to(ROOT))):
        return f"{page}: {to.name} has no #{anchor}, but {sorted(there)}"
    return None


def test_a_path_that_a_page_names_is_there() -> None:
    """Paths with dots are examples, and some paths are made as the command of the page runs."""
    examples = Path("docs", "your-own-workflow.md")
    found = [
        f"{page} names {name}"
        for page, name in named(PATH)
        if not ("..." in name or name in MADE or page == examples or (ROOT / name).exists())
    ]
    assert found == []


def defined() -> Iterator[tuple[Path, str, str]]:
    """Yield what pages say is in a module, as in "`claim` and `dispatch` in `...claim.py`"."""
    for page in PAGES:
        for names, path in DEFINED.findall((ROOT / page).read_text(encoding="utf-8")):
            yield from ((page, name, path) for name in re.findall(r"\w+", names) if name != "and")


def test_a_name_that_a_page_places_in_a_module_is_there() -> None:
    def is_there(name: str, path: str) -> bool:
        code = (ROOT / path).read_text(encoding="utf-8")
        definition = rf"^ *(?:(?:async )?def|class) {name}\b|^{name}\b.* = "
        return re.search(definition, code, re.MULTILINE) is not None

    found = [one for one in sorted(set(defined())) if not is_there(one[1], one[2])]
    assert found == []


MADE: frozenset[str] = frozenset({"devstack/azurite/node_modules"})


def test_a_make_target_that_a_page_names_is_one() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    assert [one for one in named(MAKE) if one[1] not in targets] == []


def test_a_module_that_a_page_runs_is_there() -> None:
    def is_there(module: str) -> bool:
        path = ROOT / module.rstrip(".").replace(".", "/")
        return path.with_suffix(".py").exists() or (path / "__main__.py").exists()

    assert [one for one in named(MODULE) if not is_there(one[1])] == []


def test_every_page_is_led_to_by_another() -> None:
    reached = {
        (ROOT / page.parent / target.partition("#")[0]).resolve() for page, target in links()
    }
    reached |= {path / "README.md" for path in reached if path.is_dir()}
    alone = [str(page) for page in PAGES if (ROOT / page) not in reached]
    assert alone == ["README.md"]


def test_a_page_holds_no_merge_conflict() -> None:
    conflict = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
    assert [
        page for page in PAGES if conflict.search((ROOT / page).read_text(encoding="utf-8"))
    ] == []


def test_a_decision_is_at_most_a_page() -> None:
    decisions = [page for page in PAGES if re.match(r"\d{4}-", page.name)]
    assert decisions
    lengths = {str(page): len((ROOT / page).read_text("utf-8").split()) for page in decisions}
    assert {page: words for page, words in lengths.items() if words > 450} == {}
