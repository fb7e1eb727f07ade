"""The saga on Temporal: a workflow, six activities, one worker process.

``python -m lab.benchmarks.peers.apps.temporal_app ADDRESS``
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from lab.benchmarks.peers.apps.saga import SECONDS_MAX, STEPS, RefusedError, Services

QUEUE = "saga"
services: list[Services] = []


@activity.defn
async def do(step: str, order_id: str, order: Any, results: Any) -> dict[str, Any]:
    """Carry out a step; a refusal ends Temporal's own retries."""
    try:
        return await services[0].do(step, order_id, order, results)
    except RefusedError as refused:
        raise ApplicationError(str(refused), non_retryable=True) from refused


@activity.defn
async def undo(step: str, order_id: str) -> dict[str, Any]:
    """Undo a step."""
    return await services[0].undo(step, order_id)


@workflow.defn
class Saga:
    """One order."""

    @workflow.run
    async def run(self, order: dict[str, Any]) -> str:
        """Carry out the steps, or undo those that were begun; its id is the workflow's id."""
        order_id = workflow.info().workflow_id
        results: dict[str, Any] = {}
        steps_begun: list[str] = []
        try:
            for step in STEPS:
                steps_begun.append(step)
                results[step] = await self._call(do, step, order_id, order, results)
        except ActivityError:
            for step in reversed(steps_begun):
                await self._call(undo, step, order_id)
            return "undone"
        return "done"

    async def _call(self, function: Any, *arguments: Any) -> Any:
        return await workflow.execute_activity(
            function,
            args=arguments,
            start_to_close_timeout=timedelta(seconds=SECONDS_MAX),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=200)),
        )


async def main(address: str) -> None:
    """Work until this process is killed."""
    services.append(Services())
    client = await Client.connect(address)
    await Worker(client, task_queue=QUEUE, workflows=[Saga], activities=[do, undo]).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
