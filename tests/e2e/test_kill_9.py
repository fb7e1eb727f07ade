"""An adopter tries `kill -9` on each process of `devstack up` in turn, while orders run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devstack.children import Child
from devstack.tests.stack_kit import is_running, screen_of, stdout_of, until
from samples.services.contract import SERVICES
from tests.e2e.typed import project_in
from tests.functions_rig import ROOT
from tests.ports import free_port

EACH = 6
"""Orders that are submitted just before each kill."""
ENDS_WITHIN_S = 300.0
"""Far more than is needed: what a killed host had in hand comes back when its lock ends."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A project, how it is started, its orders, and what its services did."""

    folder: Path
    words: list[str]
    options: list[str]
    order: dict[str, Any]
    effects: Callable[[str], dict[str, list[str]]]
    """The effects in force of each order; it gets what the stack has shown."""
    steps: int
    packages: Path

    def sas(self, *words: str, text: str = "") -> str:
        """What `sas` prints here."""
        done = subprocess.run(
            [sys.executable, "-m", "sas.cli", *words],
            cwd=self.folder, env=self.env, input=text,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode in {0, 1}, done.stderr
        return done.stdout

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.packages), "TMPDIR": str(self.folder.parent)}


def new_project(tmp_path: Path) -> Place:
    """What `sas new` writes, on the packages of this repository without its `orders`."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in {"orders", "function_app.py", "tests", ".devstack"}:
            (packages / entry.name).symlink_to(entry)
    subprocess.run(
        [sys.executable, "-m", "sas.cli", "new", "shop"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(packages)}, check=True,
    )  # fmt: skip
    address = f"http://127.0.0.1:{(port := free_port())}"
    words = ["-m", "devstack", "up", ".", "--ports", "free", "--needs", f"{port}=services"]
    words += ["--with", shlex.join([sys.executable, "services.py", str(port)])]
    words += ["--setting", f"STOCK_URL={address}", "--setting", f"PAYMENT_URL={address}"]

    def effects(_: str) -> dict[str, list[str]]:
        by_order: dict[str, list[str]] = {}
        for key in read(address):
            by_order.setdefault(key.partition("/")[0], []).append(key)
        return by_order

    return Place(
        folder=tmp_path / "shop",
        words=words,
        options=["--workflow", "order", "--reply-queue", "responses-web"],
        order={"product": "tea", "quantity": 2, "card": "4000-1"},
        effects=effects,
        steps=2,
        packages=packages,
    )


def repository(tmp_path: Path) -> Place:
    """This repository, as `make up` starts it, with services that never fail."""
    words = ["-m", "samples.up", "--ports", "free"]
    words += ["--services=--permanent 0 --transient 0 --slow 0"]

    def effects(screen: str) -> dict[str, list[str]]:
        line = re.findall(r"^\[beside-1\] (\{.*\})$", screen, re.MULTILINE)[-1]
        by_order: dict[str, list[str]] = {}
        for service in SERVICES:
            for effect in read(f"{json.loads(line)[service]}/ledger")["effects"]:
                if effect["undone_at"] is None:
                    by_order.setdefault(effect["order_id"], []).append(service)
        return by_order

    with (ROOT / "samples" / "northwind-orders.jsonl").open(encoding="utf-8") as lines:
        order = json.loads(next(lines))
    return Place(
        folder=project_in(tmp_path),
        words=words,
        options=["--workflow", "order", "--reply-queue", "responses-web-shop"],
        order=order,
        effects=effects,
        steps=3,
        packages=ROOT,
    )


def read(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310  our own server
        return json.load(answer)


@pytest.mark.long
@pytest.mark.parametrize("place_of", [new_project, repository])
async def test_every_order_ends_with_each_effect_once_while_each_process_is_killed_in_turn(
    place_of: Callable[[Path], Place], tmp_path: Path
) -> None:
    place = place_of(tmp_path)
    words = [sys.executable, *place.words]
    up = Child("up", words, logs=tmp_path, env=place.env, cwd=place.folder)
    up.start()
    try:
        screen = await screen_of(up)
        pids = re.findall(r"^  (?:broker|azurite|host|beside).*? pid (\d+)", screen, re.MULTILINE)
        assert len(pids) >= 4
        ids: list[str] = []
        for count, pid in enumerate(pids):
            more = [f"K-{count}-{number}" for number in range(EACH)]
            lines = [json.dumps({**place.order, "order_id": order_id}) for order_id in more]
            await asyncio.to_thread(place.sas, "submit", "-", *place.options, text="\n".join(lines))
            ids += more
            os.kill(int(pid), signal.SIGKILL)
            await until(lambda: stdout_of(up).count("runs again: pid ") > count, up)  # noqa: B023
        assert stdout_of(up).count(" died with signal SIGKILL: ") == len(pids)
        states: dict[str, str] = {}
        async with asyncio.timeout(ENDS_WITHIN_S):
            while set(states) != set(ids):
                await asyncio.sleep(1)
                listed = place.sas("list", "--state", "finished", "--json", "--limit", "100")
                orders = map(json.loads, listed.splitlines())
                states = {order["OrderID"]: order["ProcessState"] for order in orders}
        assert set(states.values()) == {"Processed"}
        effects = place.effects(stdout_of(up))
        assert set(effects) == set(ids)
        assert all(len(done) == len(set(done)) == place.steps for done in effects.values()), effects
    finally:
        await up.stop_async(signal.SIGINT, timeout_s=120)
    assert stdout_of(up).endswith("Everything is stopped.")
    assert not any(is_running(int(pid)) for pid in re.findall(r"pid (\d+)", stdout_of(up)))
