"""The saga on DBOS: an HTTP server that starts a workflow for each order, as DBOS's pages do.

``python -m lab.benchmarks.peers.apps.dbos_app inline|queued DATABASE_URL PORT``
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from dbos import DBOS, DBOSConfig, SetWorkflowID

from lab.benchmarks.peers.apps.saga import STEPS, RefusedError, Services

QUEUE = "steps"
POLL_S = 0.05
"""DBOS's own default is 1 s, for the queue and for a result that is waited for."""

services = Services()


@DBOS.step(retries_allowed=True, max_attempts=10, should_retry=lambda e: not _refused(e))
async def do(step: str, order_id: str, order: Any, results: Any) -> dict[str, Any]:
    """Carry out a step."""
    return await services.do(step, order_id, order, results)


@DBOS.step(retries_allowed=True, max_attempts=10)
async def undo(step: str, order_id: str) -> dict[str, Any]:
    """Undo a step."""
    return await services.undo(step, order_id)


@DBOS.workflow()
async def queued_do(step: str, order_id: str, order: Any, results: Any) -> dict[str, Any]:
    """Carry out a step that came over the queue; a refusal is a result."""
    try:
        found: dict[str, Any] = await do(step, order_id, order, results)
    except RefusedError as refused:
        return {"refused": str(refused)}
    return found


@DBOS.workflow()
async def inline(order_id: str, order: dict[str, Any]) -> str:
    """Carry out one order; the steps run here."""

    async def call(step: str, results: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = await do(step, order_id, order, results)
        return found

    return await _saga(order_id, call)


@DBOS.workflow()
async def queued(order_id: str, order: dict[str, Any]) -> str:
    """Carry out one order; each step goes over the queue."""

    async def call(step: str, results: dict[str, Any]) -> dict[str, Any]:
        handle = await DBOS.enqueue_workflow_async(QUEUE, queued_do, step, order_id, order, results)
        found: dict[str, Any] = await handle.get_result(polling_interval_sec=POLL_S)
        if "refused" in found:
            raise RefusedError(found["refused"])
        return found

    return await _saga(order_id, call)


async def _saga(
    order_id: str, call: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
) -> str:
    results: dict[str, Any] = {}
    begun: list[str] = []
    try:
        for step in STEPS:
            begun.append(step)
            results[step] = await call(step, results)
    except RefusedError:
        for step in reversed(begun):
            await undo(step, order_id)
        return "undone"
    return "done"


def _refused(error: BaseException) -> bool:
    return isinstance(error, RefusedError)


async def serve(kind: str, port: int) -> None:
    """Serve ``POST /orders/<id>``: start the order's workflow and answer with its result."""
    workflow = {"inline": inline, "queued": queued}[kind]

    async def order(request: web.Request) -> web.Response:
        order_id = request.match_info["id"]
        with SetWorkflowID(order_id):
            handle = await DBOS.start_workflow_async(workflow, order_id, await request.json())
        return web.json_response(await handle.get_result(polling_interval_sec=POLL_S))

    app = web.Application()
    app.add_routes([web.post("/orders/{id}", order)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main() -> None:
    """Launch DBOS, which also recovers what an earlier process left, and serve."""
    kind, database, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    config: DBOSConfig = {
        "name": "saga",
        "system_database_url": database,
        "application_version": "1",
        "log_level": "WARNING",
    }
    DBOS(config=config)

    async def run() -> None:
        DBOS.launch()
        if kind == "queued":
            await DBOS.register_queue_async(QUEUE, polling_interval_sec=POLL_S)
        await serve(kind, port)

    asyncio.run(run())


if __name__ == "__main__":
    main()
