"""How `sas desk` opens a browser, and what it says if none comes."""

from __future__ import annotations

import asyncio
import webbrowser
from pathlib import Path

import pytest
from aiohttp import web

from sas.cli import desk
from sas.cli.desk import Entrance
from sas.desk.guard import Guard


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that the browser was given. It opens none."""
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    return opened


def entrance() -> Entrance:
    guard = Guard(lambda status, why: web.Response(status=status, text=why))
    return Entrance(guard, as_json=False, at_terminal=True)


def page_in(home: Path) -> Path:
    (page,) = home.glob("sas-desk-*/desk.html")
    return page


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


async def test_if_no_browser_comes_it_says_where_the_page_is(
    addresses: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(desk, "BROWSER_S", 0.01)
    links = entrance()
    links.open_browser(links.new_link())
    await asyncio.sleep(0.1)
    page = page_in(tmp_path)
    assert (
        f"No browser has opened {page} yet. If yours cannot, open the link"
        in capsys.readouterr().err
    )
    links.close()
    assert is_empty(tmp_path)
    assert addresses == [page.as_uri()]


async def test_without_a_home_folder_the_link_is_opened_by_hand(
    addresses: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "nosuch")
    links = entrance()
    links.open_browser(links.new_link())
    assert "open the link yourself" in capsys.readouterr().err
    assert addresses == []
