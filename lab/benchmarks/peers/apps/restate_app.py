"""The saga on Restate, as its guide on sagas writes it: a list of undos, run backwards.

``python -m lab.benchmarks.peers.apps.restate_app PORT``
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import hypercorn
import hypercorn.asyncio
import restate
from restate.exceptions import TerminalError

from lab.benchmarks.peers.apps.saga import STEPS, RefusedError, Services

saga = restate.Workflow("Saga")
services = Services()


async def do(step: str, order_id: str, order: Any, results: Any) -> dict[str, Any]:
    """Carry out a step; a refusal ends Restate's own retries."""
    try:
        return await services.do(step, order_id, order, results)
    except RefusedError as refused:
        raise TerminalError(str(refused)) from refused


@saga.main()
async def run(ctx: restate.WorkflowContext, order: dict[str, Any]) -> str:
    """Carry out one order; its id is the workflow's key."""
    results: dict[str, Any] = {}
    steps_begun: list[str] = []
    try:
        for step in STEPS:
            steps_begun.append(step)
            results[step] = await ctx.run_typed(
                step, do, step=step, order_id=ctx.key(), order=order, results=results
            )
    except TerminalError:
        for step in reversed(steps_begun):
            await ctx.run_typed(f"undo {step}", services.undo, step=step, order_id=ctx.key())
        return "undone"
    return "done"


if __name__ == "__main__":
    config = hypercorn.Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]
    # As Restate's page on serving advises for Hypercorn.
    config.h2_max_concurrent_streams = 2147483647
    config.keep_alive_max_requests = 2147483647
    config.keep_alive_timeout = 2147483647
    config.loglevel = "warning"
    asyncio.run(hypercorn.asyncio.serve(restate.app(services=[saga]), config))
