"""Mutants of running on: what is handed over, and what a redelivery sends. Unit tests find them."""

from __future__ import annotations

from lab.mutants.mutant import Mutant

_RUN_ON = "sas/engine/run_on.py"
_RUNNER = "sas/engine/transition.py"
_AGENT = "sas/actors/agent.py"
_EXCUSES = "sas/features/queue_delay/excuses.py"
_TESTS = ("tests/unit/test_run_on.py",)
_SLOW = ("tests/simulation/test_slow_inline_agent.py",)
_DELAY = ("tests/unit/test_actors_queue_delay.py",)


def _mutant(name: str, path: str, old: str, new: str, *, tests: tuple[str, ...] = _TESTS) -> Mutant:
    return Mutant(name=name, path=path, old=old, new=new, tests=tests)


RUN_ON = (
    _mutant(
        "a repeat sends only the own row of its message (the walk)",
        _RUNNER,
        "                    entries.append(following)\n",
        "                    _ = following\n",
    ),
    _mutant(
        "a repeat notifies only of the own row of its message",
        _RUNNER,
        "            external = True\n",
        "            external = False\n",
    ),
    _mutant(
        "the reply of a dead-lettered request is not fenced",
        "sas/actors/dead_letters.py",
        "            await self._finish(request.order_id, replied, delivery)",
        "            await self._put_aside(delivery, request.order_id)",
    ),
    _mutant(
        "a redelivered request that ends in silence does not fence its reply",
        _AGENT,
        "await self._let_go(request)",
        "pass",
    ),
    _mutant(
        "a redelivered wake that finds nothing is not fenced",
        "sas/actors/scheduler.py",
        "return fence(order) if decision is None and not delivery.is_first else decision",
        "return decision",
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
        "a redelivered request sends a part of its chain without the workflow",
        _AGENT,
        "cause, whole=True)",
        "cause)",
    ),
    _mutant(
        "a redelivered request that cannot be fenced forgets its call",
        _AGENT,
        "error.put_back_with |= carrying(CallState.TRIED)",
        "pass",
    ),
    _mutant(
        "a redelivered request does not look for its reply",
        _AGENT,
        "if not call.is_first and await self._is_replied(request):",
        "if False:",
    ),
    _mutant(
        "a redelivery runs on",
        "sas/engine/receiver.py",
        "    if not delivery.is_first:\n        return await handler(delivery), []\n",
        "",
    ),
    _mutant(
        "what was recorded before runs on",
        "sas/engine/outbox.py",
        "            send = self._run_on.send_again\n",
        "",
    ),
    _mutant(
        "a handed-over message whose handler fails does not travel",
        _RUN_ON,
        "                await self.send_again([tried])\n",
        "                _ = tried\n",
    ),
    _mutant(
        "a request whose handler has a bug travels as if no call went out",
        _RUN_ON,
        "await self.send_again([tried])",
        "await self.send_again([message])",
    ),
    _mutant(
        "a root that is put back forgets its call",
        _RUN_ON,
        "outage.put_back_with |= _TRIED",
        "_ = _TRIED",
    ),
    _mutant(
        "a chain has no end in time",
        _RUN_ON,
        "now >= chain.last_hand_over_at or ",
        "",
    ),
    _mutant(
        "a chain takes all the time of its function",
        _RUN_ON,
        "min(now + CHAIN_TIME, now + (ends_at - now) / 2)",
        "min(now + CHAIN_TIME, ends_at)",
    ),
    _mutant(
        "a chain has no end in number",
        _RUN_ON,
        " or chain.hand_overs >= HAND_OVERS_MAX",
        "",
    ),
    _mutant(
        "any number of calls runs on (CALLS_MAX)",
        _RUN_ON,
        "is_full = is_call and self.calls >= CALLS_MAX",
        "is_full = False",
        tests=_SLOW,
    ),
    _mutant(
        "a call that ended makes no room",
        _RUN_ON,
        "            self.calls -= is_call",
        "            self.calls -= 0",
    ),
    _mutant(
        "a call holds its function for as long as it takes",
        _RUN_ON,
        "min(now + CALL_TIME, chain.ends_at) if is_call else chain.ends_at",
        "chain.ends_at",
    ),
    _mutant(
        "a handed-over message of an urgent lane is not urgent",
        _RUN_ON,
        "urgent=message.queue.endswith(URGENT_SUFFIX),",
        "urgent=False,",
    ),
    _mutant(
        "the root of a chain excuses no step",
        _EXCUSES,
        "            if root in scan.oldest:\n",
        "            if False:\n",
        tests=_DELAY,
    ),
    _mutant(
        "a long queue of orders excuses every step",
        _EXCUSES,
        "            if root in scan.oldest:\n",
        "            if root in scan.oldest or scan.full:\n",
        tests=_DELAY,
    ),
)
