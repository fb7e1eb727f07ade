"""The simulation of Azure, held to the code and to the page that quotes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import azure
from lab.azure import DESIGNS, LONE, bill, simulate
from sas.bootstrap import Application
from tests.simulation.counts import QUEUES, System

PAGE = Path(__file__).parents[2] / "docs" / "cost.md"
SCALE = PAGE.with_name("scale.md")
DEFAULT, INLINE = DESIGNS


class OneDesign(System):
    """The code in memory, each function in a process of its own, as one design."""

    def __init__(self, design: str) -> None:
        super().__init__(apart=True)
        self.design = design

    def application(self, function: str) -> Application:
        app = super().application(function)
        run_on = app.context.run_on
        if self.design == INLINE:
            agents = {QUEUES.agent(name): agent.handle for name, agent in app.agents.items()}
            run_on.inline = frozenset(agents)
            run_on.handlers = {**run_on.handlers, **agents}
        return app


@pytest.mark.parametrize("name", DESIGNS)
async def test_an_order_asks_for_what_the_code_asks_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure, "COLD_START_S", (2.0, 2.0))  # so that nothing is forgotten
    usage = simulate(DESIGNS[name], LONE, orders=3).usage
    system = OneDesign(name)
    await system.clock.run(system.submit("warm"))
    assert await system.counts(system.submit("O-1")) == tuple(
        usage[kind] for kind in ("requests", "messages", "executions")
    )


def test_the_bill_adds_up() -> None:
    """By hand: 100,000 orders a day of four executions, each billed as two seconds."""
    parts = bill(simulate(DESIGNS[DEFAULT], LONE, orders=100), 100_000, 8.0)
    orders = 100_000 * 30.4
    gb_s = 16 * orders + 2 * 30.4 * (8_640 + 430)
    executions = 4 * orders + 30.4 * 8_784
    functions = (gb_s - 100_000) * 0.000026 + (executions - 250_000) * 0.40e-6
    assert parts["functions"] == pytest.approx(functions)
    assert parts["Service Bus"] == pytest.approx(9.81 + (18 * orders - 13e6) * 0.80e-6)
    sweeps, minutes = 8_640 * 30.4, 4 * 30 * orders / 60 + 1_440 * 30.4
    records = 19 * orders + 24 * 8_640 * 30.4 + 9 * sweeps + 35 * minutes
    assert parts["logs, alerts"] == pytest.approx(16.30 + (records / 1e6 - 5) * 2.30, rel=0.01)
    stored_gb = 100_000 * 30 * 8e-6
    requests = orders * (11 + 4) + 30.4 * (8_640 * 18 + 144 * 34 + 1_440 * 2)
    assert parts["storage"] == pytest.approx(1.25 * (0.045 * stored_gb + 0.036e-6 * requests))


@pytest.mark.long
def test_the_page_and_its_picture_are_of_this_simulation() -> None:
    results = azure.simulate_all()
    page = PAGE.read_text()
    for table in azure.tables(results).split("\n\n"):
        assert table in page, "run python -m lab.azure, and copy its tables to docs/cost.md"
    assert azure.lone_orders() in SCALE.read_text(), "copy its table to docs/scale.md"
    assert azure.PICTURE.read_text() == azure.picture(results), "run python -m lab.azure"
