"""`make docs`: the pages as a site, with every link checked and the diagrams drawn."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from playwright.sync_api import sync_playwright

from tests.functions_rig import ROOT
from tools.docs_site import PAGES, build, stage

SITE = ROOT / "build" / "docs" / "site"


@pytest.mark.long
def test_make_docs_builds_a_site_that_loads_nothing_from_elsewhere_and_draws_its_diagrams() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", "make docs"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (SITE / "docs" / "adr" / "index.html").exists()
    drawn = re.findall(r"```mermaid", (ROOT / "docs" / "states.md").read_text(encoding="utf-8"))
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium was not found: apt-get install chromium")
    urls: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.on("request", lambda request: urls.append(request.url))
        for name, diagrams in (("index.html", 1), ("docs/states.html", len(drawn))):
            page.goto((SITE / name).as_uri())
            # The theme puts each picture into a closed shadow root of a div.
            page.locator("div.mermaid").nth(diagrams - 1).wait_for()
            assert page.locator("pre.mermaid").count() == 0
            heights = page.locator("div.mermaid").evaluate_all(
                "all => all.map(e => e.clientHeight)"
            )
            assert len(heights) == diagrams
            assert all(height > 50 for height in heights), heights
        browser.close()
    assert [url for url in urls if not url.startswith("file:")] == []


@pytest.mark.long
def test_a_link_that_leads_nowhere_ends_make_docs(capfd: pytest.CaptureFixture[str]) -> None:
    subprocess.run(
        ["/bin/sh", "-c", "make build/docs/.ready"], cwd=ROOT, capture_output=True, check=True
    )
    stage()
    targets = ("docs/nowhere.md", "docs/states.md#nowhere")
    with (PAGES / "README.md").open("a", encoding="utf-8") as page:
        page.writelines(f"\n[broken]({target})\n" for target in targets)
    assert build(str(ROOT / "build" / "docs" / "venv" / "bin" / "python")) == 1
    printed = capfd.readouterr().err
    assert [target for target in targets if f"a link '{target}'" not in printed] == []
