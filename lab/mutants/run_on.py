"""Mutants of running on: what is handed over, and what a redelivery sends. Unit tests find them."""

from __future__ import annotations

from lab.mutants.mutant import Mutant

_RUN_ON = "sas/engine/run_on.py"
_RUNNER = "sas/engine/transition.py"
_RECEIVER = "sas/engine/receiver.py"
_TESTS = ("tests/unit/test_run_on.py",)

RUN_ON = (
    Mutant(
        name="a repeat sends only the own row of its message (the walk)",
        path=_RUNNER,
        old="                    entries.append(following)\n",
        new="                    _ = following\n",
        tests=_TESTS,
    ),
    Mutant(
        name="a repeat notifies only of the own row of its message",
        path=_RUNNER,
        old="            external = True\n",
        new="            external = False\n",
        tests=_TESTS,
    ),
    Mutant(
        name="the reply of a dead-lettered request is not fenced",
        path="sas/actors/dead_letters.py",
        old="            await self._finish(request.order_id, replied, delivery)",
        new="            await self._put_aside(delivery, request.order_id)",
        tests=_TESTS,
    ),
    Mutant(
        name="a handed-over message whose handler fails does not travel",
        path=_RUN_ON,
        old="            await self.bus.send([self._tried(message)])",
        new="            _ = message",
        tests=_TESTS,
    ),
    Mutant(
        name="a redelivery runs on",
        path=_RECEIVER,
        old="is_first = delivery.is_first and not delivery.source_queue",
        new="is_first = True",
        tests=_TESTS,
    ),
    Mutant(
        name="a dead letter runs on",
        path=_RECEIVER,
        old="is_first = delivery.is_first and not delivery.source_queue",
        new="is_first = delivery.is_first",
        tests=_TESTS,
    ),
    Mutant(
        name="what was recorded before runs on",
        path=_RUNNER,
        old="                with sending():",
        new="                if entry:",
        tests=_TESTS,
    ),
    Mutant(
        name="a redelivered request does not look for its reply",
        path="sas/actors/agent.py",
        old="if not delivery.is_first and await self._replied(call.request):",
        new="if False:",
        tests=_TESTS,
    ),
    Mutant(
        name="a chain has no end in time",
        path=_RUN_ON,
        old="if now >= chain.ends_at or too_much:",
        new="if too_much:",
        tests=_TESTS,
    ),
    Mutant(
        name="a chain takes all the time of its function",
        path=_RUN_ON,
        old="now + (root.ends_at - now) / 2",
        new="root.ends_at",
        tests=_TESTS,
    ),
    Mutant(
        name="a chain has no end in number",
        path=_RUN_ON,
        old="chain.hand_overs > HAND_OVERS_MAX or ",
        new="",
        tests=_TESTS,
    ),
    Mutant(
        name="any number of calls runs on (CALLS_MAX)",
        path=_RUN_ON,
        old="(is_call and self.calls >= CALLS_MAX)",
        new="False",
        tests=("tests/simulation/test_slow_inline_agent.py",),
    ),
    Mutant(
        name="a call that ended makes no room",
        path=_RUN_ON,
        old="            self.calls -= is_call",
        new="            self.calls -= 0",
        tests=_TESTS,
    ),
    Mutant(
        name="a call holds its function for as long as it takes",
        path=_RUN_ON,
        old="now + CALL_TIME if is_call else root.ends_at",
        new="root.ends_at",
        tests=_TESTS,
    ),
    Mutant(
        name="a handed-over message of an urgent lane is not urgent",
        path=_RUN_ON,
        old="urgent=message.queue.endswith(URGENT_SUFFIX),",
        new="urgent=False,",
        tests=_TESTS,
    ),
    Mutant(
        name="a request that was handed over travels as if no call went out",
        path=_RUN_ON,
        old="if message.queue not in self.inline:",
        new="if True:",
        tests=_TESTS,
    ),
    Mutant(
        name="a root that is put back forgets its call",
        path=_RUN_ON,
        old="outage.put_back_with |= TRIED",
        new="_ = TRIED",
        tests=_TESTS,
    ),
)
