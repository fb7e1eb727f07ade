"""The saga on DBOS: an HTTP server that starts a workflow for each order, as DBOS's pages do.

``python -m lab.benchmarks.peers.apps.dbos_app DATABASE_URL PORT HOW``: the workflow calls each step
*inline*, or enqueues it on a queue and waits (*queued*).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiohttp import web
from dbos import DBOS, DBOSConfig, SetWorkflowID

from lab.benchmarks.peers.apps.saga import STEPS, RefusedError, Services

POLL_S = 0.05
"""DBOS's own default for a result that is waited for is 1 s."""
QUEUE, QUEUE_POLL_S = "steps", 1.0
"""The documented default of ``polling_interval_sec``; DBOS's pages recommend no other. The workflow
looks for a step's result at DBOS's default too: at ``POLL_S``, 100 waiters slow the database."""
QUEUED = sys.argv[3:] == ["queued"]

services = Services()


@DBOS.step(retries_allowed=True, max_attempts=10, should_retry=lambda e: not _refused(e))
async def do(step: str, order_id: str, order: Any, results: Any) -> dict[str, Any]:
    """Carry out a step."""
    return await services.do(step, order_id, order, results)


@DBOS.step(retries_allowed=True, max_attempts=10)
async def undo(step: str, order_id: str) -> dict[str, Any]:
    """Undo a step."""
    return await services.undo(step, order_id)


async def call(step: Any, *arguments: Any) -> Any:
    """Call a step, or enqueue it and wait."""
    if not QUEUED:
        return await step(*arguments)
    handle = await DBOS.enqueue_workflow_async(QUEUE, step, *arguments)
    return await handle.get_result()


@DBOS.workflow()
async def saga(order_id: str, order: dict[str, Any]) -> str:
    """Carry out one order."""
    results: dict[str, Any] = {}
    steps_begun: list[str] = []
    try:
        for step in STEPS:
            steps_begun.append(step)
            results[step] = await call(do, step, order_id, order, results)
    except RefusedError:
        for step in reversed(steps_begun):
            await call(undo, step, order_id)
        return "undone"
    return "done"


def _refused(error: BaseException) -> bool:
    return isinstance(error, RefusedError)


async def serve(port: int) -> None:
    """Serve ``POST /orders/<id>``: start the order's workflow and answer with its result."""

    async def order(request: web.Request) -> web.Response:
        order_id = request.match_info["id"]
        with SetWorkflowID(order_id):
            handle = await DBOS.start_workflow_async(saga, order_id, await request.json())
        return web.json_response(await handle.get_result(polling_interval_sec=POLL_S))

    app = web.Application()
    app.add_routes([web.post("/orders/{id}", order)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main() -> None:
    """Launch DBOS, which also recovers what an earlier process left, and serve."""
    database, port = sys.argv[1], int(sys.argv[2])
    config: DBOSConfig = {
        "name": "saga",
        "system_database_url": database,
        "application_version": "1",
        "log_level": "WARNING",
    }
    DBOS(config=config)

    async def run() -> None:
        DBOS.launch()
        if QUEUED:
            await DBOS.register_queue_async(QUEUE, polling_interval_sec=QUEUE_POLL_S)
        await serve(port)

    asyncio.run(run())


if __name__ == "__main__":
    main()
