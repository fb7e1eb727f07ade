"""Every link between our pages leads somewhere, and what they name is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "infra", "samples", "benchmarks", "devstack", "sas", "orders", "tools")
PAGES = sorted(
    page.relative_to(ROOT)
    for pages in (ROOT.glob("*.md"), *((ROOT / folder).rglob("*.md") for folder in FOLDERS))
    for page in pages
    if "node_modules" not in page.parts
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
PATH = re.compile(
    r"`((?:sas|orders|devstack|samples|infra|tests|tools|docs|benchmarks)/[\w./-]+?)(?:::\w+)?`"
)
DEFINED = re.compile(r"((?:`\w+`(?:, | and )?)+) in `(sas/[\w/]+\.py)`")
MAKE = re.compile(r"(?:`| {4})make ([a-z-]+)\b")
MODULE = re.compile(r"python -m ((?:sas|devstack|samples|tools|benchmarks|orders)[\w.]*)")


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


@pytest.mark.parametrize(("page", "target"), sorted(set(links())))
def test_a_link_leads_to_a_file_and_to_a_heading_that_are_there(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    to = (ROOT / page.parent / path).resolve() if path else ROOT / page
    assert to.exists(), f"{page}: {path} is not there"
    if anchor:
        there = anchors(to.relative_to(ROOT))
        assert anchor in there, f"{page}: {to.name} has no #{anchor}, but {sorted(there)}"


@pytest.mark.parametrize(("page", "name"), named(PATH))
def test_a_path_that_a_page_names_is_there(page: Path, name: str) -> None:
    if "..." in name or name in MADE or page == Path("docs", "your-own-workflow.md"):
        return  # an example, or made as it runs
    assert (ROOT / name).exists(), f"{page} names {name}"


def defined() -> Iterator[tuple[Path, str, str]]:
    """Yield what pages say is in a module, as in "`claim` and `dispatch` in `...claim.py`"."""
    for page in PAGES:
        for names, path in DEFINED.findall((ROOT / page).read_text(encoding="utf-8")):
            yield from ((page, name, path) for name in re.findall(r"\w+", names) if name != "and")


@pytest.mark.parametrize(("page", "name", "path"), sorted(set(defined())))
def test_what_a_page_says_is_in_a_module_is_there(page: Path, name: str, path: str) -> None:
    code = (ROOT / path).read_text(encoding="utf-8")
    definition = rf"^ *(?:(?:async )?def|class) {name}\b|^{name}\b.* = "
    assert re.search(definition, code, re.MULTILINE), f"{page}: {path} has no {name}"


MADE: frozenset[str] = frozenset({"devstack/azurite/node_modules"})


@pytest.mark.parametrize(("page", "target"), named(MAKE))
def test_a_make_target_that_a_page_names_is_one(page: Path, target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("page", "module"), named(MODULE))
def test_a_module_that_a_page_runs_is_there(page: Path, module: str) -> None:
    path = ROOT / module.rstrip(".").replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), page


def test_every_page_is_led_to_by_another() -> None:
    reached = {
        (ROOT / page.parent / target.partition("#")[0]).resolve() for page, target in links()
    }
    reached |= {path / "README.md" for path in reached if path.is_dir()}
    alone = [str(page) for page in PAGES if (ROOT / page) not in reached]
    assert alone == ["README.md"]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_holds_no_merge_conflict(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not re.findall(r"^(?:<{7}|>{7}) .*", text, re.MULTILINE)
