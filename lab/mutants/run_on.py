"""Mutants of running on: what is handed over, and what a redelivery sends. Unit tests find them."""

from __future__ import annotations

from lab.mutants.mutant import Mutant

_RUN_ON = "sas/engine/run_on.py"
_EXCUSES = "sas/features/queue_delay/excuses.py"
_TESTS = ("tests/unit/test_run_on.py",)
_SLOW = ("tests/simulation/test_slow_inline_agent.py",)
_DELAY = ("tests/unit/test_actors_queue_delay.py",)


def _mutant(name: str, path: str, old: str, new: str, *, tests: tuple[str, ...] = _TESTS) -> Mutant:
    return Mutant(name=name, path=path, old=old, new=new, tests=tests)


RUN_ON = (
    _mutant(
        "the reply of a dead-lettered request is not fenced",
        "sas/actors/dead_letters.py",
        "            await self._finish(request.order_id, replied, delivery)",
        "            await self._put_aside(delivery, request.order_id)",
    ),
    _mutant(
        "only what was delivered twice fences",
        "sas/engine/in_flight.py",
        "self.is_first = delivery.is_first",
        "self.is_first = (delivery.count or 1) == 1",
    ),
    _mutant(
        "what a redelivery sends is not marked",
        _RUN_ON,
        'properties={**message.properties, AGAIN: "yes"}',
        "properties=message.properties",
    ),
    _mutant(
        "what was recorded before runs on",
        "sas/engine/outbox.py",
        "            send = self._run_on.send_again\n",
        "",
    ),
    _mutant(
        "a request whose handler has a bug travels as if no call went out",
        _RUN_ON,
        "await self.send_again([tried])",
        "await self.send_again([message])",
    ),
    _mutant(
        "a chain takes all the time of its function",
        _RUN_ON,
        "min(now + CHAIN_TIME, now + (ends_at - now) / 2)",
        "min(now + CHAIN_TIME, ends_at)",
    ),
    _mutant(
        "any number of calls runs on (CALLS_MAX)",
        _RUN_ON,
        "is_full = is_call and self.calls >= CALLS_MAX",
        "is_full = False",
        tests=_SLOW,
    ),
    _mutant(
        "a long queue of orders excuses every step",
        _EXCUSES,
        "            if root in scan.oldest:\n",
        "            if root in scan.oldest or scan.full:\n",
        tests=_DELAY,
    ),
)
