"""``sas azd smoke``: does what was deployed work?

1. Azure has the functions of the app, and no others.
2. An order of the built-in workflow ``smoke``, which calls nothing, comes to its end. The first
   order also makes the table, which the next part reads.
3. Settings, queues and your rights are as ``sas status --check`` wants them.

Each part is looked at again and again for some minutes: a new app starts, and roles spread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from sas.cli import screen, status, system
from sas.cli.submission import SubmitRun
from sas.cli.system import LiveSystem
from sas.client import NewOrder
from sas.deploy import smoke
from sas.domain.workflow import SMOKE
from sas.operate.errors import NotPossibleError, ServiceUnavailableError
from sas.operate.submissions import InputItem

PATIENCE_S = 300.0
"""For each part."""
PAUSE_S = 10.0


def run(expected: set[str], env: Mapping[str, str]) -> int:
    """Try what was deployed; return the exit code.

    Raises:
        NotPossibleError: it does not work; the text says what to do.
        DeploymentRefusedError, CommandFailedError: azd knows no function app, or az failed.
    """
    return system.result(partial(_smoke, expected=expected, env=env), env)


async def _smoke(place: LiveSystem, *, expected: set[str], env: Mapping[str, str]) -> int:
    place.waits_for = ""

    async def functions() -> str:
        return smoke.difference(expected, await asyncio.to_thread(smoke.deployed, env))

    async def settings() -> str:
        code = await status.check_all(place, app=None, as_json=False)
        return "something is wrong above" if code else ""

    await _patiently(
        functions,
        "If it does not change, the app does not start: read its log (Application Insights, "
        "table traces), then deploy an earlier zip",
    )
    screen.sentence(f"Azure has all {len(expected)} functions")
    await _patiently(partial(_order, place), "New roles need some minutes")
    await _patiently(settings, "New roles need some minutes: run sas azd smoke again then")
    screen.sentence("The deployment works.")
    return 0


async def _order(place: LiveSystem) -> str:
    """Send an order and follow it to its end; return why Service Bus refused it, if it did.

    Raises:
        NotPossibleError: it did not come to its end.
    """
    order = NewOrder(f"{SMOKE.name}-{time.time_ns() // 1_000_000}", {}, workflow=SMOKE.name)
    submission = SubmitRun(
        items=iter([InputItem(1, order)]),
        reply_queue=place.queues.response_of(SMOKE.name),
        follow=True,
        as_json=False,
        urgent=False,
        quiet_s=PATIENCE_S,
    )
    try:
        code = await submission.work(place)
    except ServiceUnavailableError as error:
        return str(error).rstrip(".")
    if code:
        raise NotPossibleError(
            f"order {order.order_id} did not come to its end: look at sas status and at the log of "
            "the app (Application Insights, table traces), then deploy an earlier zip"
        )
    return ""


async def _patiently(look: Callable[[], Awaitable[str]], advice: str) -> None:
    """Look until nothing is wrong.

    Raises:
        NotPossibleError: it was wrong for too long.
    """
    until = time.monotonic() + PATIENCE_S
    while problem := await look():
        if time.monotonic() >= until:
            raise NotPossibleError(f"{problem}. {advice}")
        screen.complain(f"sas: {problem}. Looking again in {PAUSE_S:g} s")
        await asyncio.sleep(PAUSE_S)
