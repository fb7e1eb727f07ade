"""The saga as a Celery chain over Redis. Nothing keeps the state of the saga.

``celery -A lab.benchmarks.peers.apps.celery_app worker`` with REDIS_URL set. Celery's
pages advise late acknowledgement for tasks that may run twice, and a high prefetch for short ones.
The visibility timeout is the time allowed for a step, as for the other peers; its page wants it in
three places. With one so low, Kombu's page advises to look for abandoned messages more often.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, chain

from lab.benchmarks.peers.apps.saga import SECONDS_MAX, STEPS, BlockingServices

app = Celery("saga", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
visibility = {"visibility_timeout": int(SECONDS_MAX)}
often = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=64,
    broker_transport_options=visibility | often,
    result_backend_transport_options=visibility,
    **visibility,
    broker_connection_retry_on_startup=True,
)
services = BlockingServices()


@app.task(autoretry_for=(OSError,), retry_backoff=True, max_retries=10)
def do(results: dict[str, Any], step: str, order_id: str, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out a step; the results so far come first, as a chain passes them on."""
    return {**results, step: services.do(step, order_id, order, results)}


@app.task
def undo(_request: Any, _error: Any, _traceback: Any, order_id: str, step: str) -> str:
    """Undo an order whose step was refused: this step and those before it, backwards."""
    for begun_step in reversed(STEPS[: STEPS.index(step) + 1]):
        services.undo(begun_step, order_id)
    app.backend.store_result(order_id, "undone", "SUCCESS")
    return "undone"


def order(order_id: str, content: dict[str, Any]) -> Any:
    """Return the chain of one order; its last task has the order's id."""
    tasks = [
        do.s(*([{}] if number == 0 else []), step, order_id, content).on_error(
            undo.s(order_id=order_id, step=step)
        )
        for number, step in enumerate(STEPS)
    ]
    tasks[-1].set(task_id=order_id)
    return chain(*tasks)
