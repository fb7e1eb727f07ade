"""What each thing asks of the platform: the counts behind ``sas cost``.

``tests/simulation/test_counts.py`` brings each of them about, and asserts these numbers. A
three-step order is the measure; its workflow does not notify of single steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sas.telemetry.usage import Usage

AGENT = "agent"
"""Stands for the function of each agent."""


@dataclass(frozen=True, slots=True)
class Count:
    """What one thing asks for, with the executions of each function. ``what`` is for people.

    The messages are those that are sent, with the application's or the operator's own.
    """

    what: str
    usage: Usage
    executions: Mapping[str, int] = field(default_factory=dict)


def _order(steps: int) -> dict[str, int]:
    return {"submission": 1, "scheduler": 1, "replies": steps, AGENT: steps}


ORDER = Count(
    "an order of three steps, in one process",
    Usage(transactions=5, entities_written=34, sends=10, messages=10),
    _order(3),
)
STEP = Count(
    "each further step, in one process",
    Usage(transactions=1, entities_written=8, sends=2, messages=2),
    {"replies": 1, AGENT: 1},
)
ORDER_APART = Count(
    "the same where each function has its own process (Flex Consumption)",
    Usage(
        transactions=5, queries=2, reads=3, entities_read=10, entities_written=34,
        sends=10, messages=10,
    ),
    _order(3),
)  # fmt: skip
STEP_APART = Count(
    "each further step there",
    Usage(
        transactions=1, reads=1, entities_read=2, entities_written=8, sends=2, messages=2
    ),
    {"replies": 1, AGENT: 1},
)  # fmt: skip
SWEEP = Count(
    "a sweep that finds nothing (16 shards)",
    Usage(queries=16, reads=1, writes=1, entities_read=1, entities_written=1),
    {"supervisor": 1},
)
HEALTH_CHECK = Count("the health check, once a minute", Usage(queries=2))
IDLE_HOUR = Count(
    "an hour without an order (a sweep every 10 seconds)",
    Usage(queries=5_880, reads=360, writes=360, entities_read=360, entities_written=360),
    {"supervisor": 360},
)
DUE_ROW = Count(
    "each step that a sweep resets",
    Usage(
        transactions=1, queries=2, deletes=1, entities_read=11, entities_written=7,
        sends=1, messages=1,
    ),
)  # fmt: skip
QUEUE_LOOK = Count("the look into the queues, once in such a sweep", Usage(peeks=4))
PURGE_RUN = Count(
    "a purge that finds nothing",
    Usage(queries=32, reads=1, writes=1, entities_written=1),
    {"purge": 1},
)
PURGE_BATCH = Count("each 50 orders of a shard that it removes", Usage(queries=1))
PURGE_TOGETHER = Count("each 6 orders of a shard that it removes", Usage(transactions=1))
PURGE_ORDER = Count(
    "each order that it removes", Usage(queries=2, entities_read=21, entities_written=16)
)

RECOVERIES: Mapping[str, Count] = {
    "retry": Count(
        "a transient error, retried inside the agent",
        Usage(writes=1, entities_written=1),
    ),
    "reset": Count(
        "an agent dies: the supervisor resets the step (without its sweep)",
        Usage(
            transactions=2, queries=2, reads=1, deletes=1, entities_read=11, entities_written=13,
            sends=2, messages=2, peeks=4,
        ),
        {"scheduler": 1},
    ),
    "expired": Count(
        "an agent dies twice: a reset, then three steps are undone (without two sweeps)",
        Usage(
            transactions=6, queries=4, reads=3, deletes=2, entities_read=22, entities_written=42,
            sends=9, messages=9, peeks=8,
        ),
        {"scheduler": 2, "replies": 2, AGENT: 2},
    ),
    "crash": Count(
        "an agent's process dies in a call, and its request comes again", Usage(), {AGENT: 1}
    ),
    "lost reply": Count(
        "a reply is lost: the supervisor resets the step (without its sweep)",
        Usage(
            transactions=2, queries=2, reads=1, deletes=1, entities_read=11, entities_written=13,
            sends=3, messages=3, peeks=4,
        ),
        {"scheduler": 1, AGENT: 1},
    ),
    "order again": Count(
        "an order is delivered again after its transaction",
        Usage(
            transactions=1, queries=3, reads=3, entities_read=18, sends=2, messages=2
        ),
        {"submission": 1},
    ),
    "wake again": Count(
        "a wake is delivered again after its transaction",
        Usage(queries=2, reads=2, entities_read=12, sends=1, messages=1),
        {"scheduler": 1},
    ),
    "request again": Count(
        "a request is delivered again after its reply",
        Usage(sends=1, messages=1),
        {AGENT: 1},
    ),
    "reply again": Count(
        "a reply is delivered again after its transaction",
        Usage(queries=2, reads=2, entities_read=12, sends=1, messages=1),
        {"replies": 1},
    ),
    "dead order": Count(
        "an order becomes a dead letter and is rejected (all that it takes)",
        Usage(
            transactions=1, queries=2, reads=1, entities_read=2, entities_written=5,
            sends=4, messages=4,
        ),
        {"deadletters": 1},
    ),
    "dead wake": Count(
        "a wake becomes a dead letter, and a sweep claims the order (without that)",
        Usage(
            transactions=2, queries=4, reads=4, deletes=1, entities_read=21, entities_written=10,
            sends=3, messages=3,
        ),
        {"deadletters": 1},
    ),
    "dead request": Count(
        "a request becomes a dead letter, and the step is reset (without its sweep)",
        Usage(
            transactions=2, queries=3, reads=1, deletes=1, entities_read=16, entities_written=13,
            sends=4, messages=4, peeks=4,
        ),
        {"deadletters": 1, "scheduler": 1},
    ),
    "dead reply": Count(
        "a reply becomes a dead letter, and the step is reset (without its sweep)",
        Usage(
            transactions=3, queries=4, reads=2, deletes=1, entities_read=21, entities_written=16,
            sends=5, messages=5, peeks=4,
        ),
        {"deadletters": 1, "scheduler": 1, AGENT: 1},
    ),
    "undo": Count(
        "the third step is refused: three steps are undone",
        Usage(transactions=3, entities_written=22, sends=7, messages=7),
        {"replies": 3, AGENT: 3},
    ),
    "resubmit": Count(
        "an operator resubmits a failed step (with the command)",
        Usage(
            transactions=3, queries=1, entities_read=5, entities_written=18, sends=5, messages=5
        ),
        {"scheduler": 2, "replies": 1, AGENT: 1},
    ),
    "skip": Count(
        "an operator skips a failed step (with the command)",
        Usage(
            transactions=1, queries=1, entities_read=5, entities_written=6, sends=2, messages=2
        ),
        {"scheduler": 1},
    ),
    "undo asked": Count(
        "an operator undoes or cancels a held order of three steps (with the command)",
        Usage(
            transactions=5, queries=1, entities_read=5, entities_written=34, sends=9, messages=9
        ),
        {"scheduler": 2, "replies": 3, AGENT: 3},
    ),
    "duplicate": Count(
        "the same order comes again",
        Usage(
            transactions=1, queries=1, reads=2, entities_read=6, sends=2, messages=2
        ),
        {"submission": 1},
    ),
    "put-back": Count(
        "a wake is put back once, because the store was away",
        Usage(transactions=1, queries=1, entities_read=5, sends=1, messages=1),
        {"scheduler": 1},
    ),
    "held": Count(
        "a notification is held, and sent by a later sweep (without that)",
        Usage(reads=1, writes=1, deletes=1, entities_read=2, entities_written=2, sends=1),
    ),
    "callback": Count(
        "a step waits for a callback",
        Usage(
            transactions=1, queries=3, entities_read=15, entities_written=6, sends=1, messages=1
        ),
        {"callbacks": 1},
    ),
    "long step": Count(
        "a long step reports progress once, and is looked at again",
        Usage(
            transactions=1, queries=2, reads=1, entities_read=10, entities_written=6,
            sends=2, messages=2,
        ),
        {"replies": 1, AGENT: 1},
    ),
    "open circuit": Count(
        "an order that comes alone meets an open circuit, and its request is the probe",
        Usage(reads=8, writes=2, entities_read=5, entities_written=2, sends=1, messages=1),
        {AGENT: 1},
    ),
    "wait round": Count(
        "a step waits for an open circuit: once per time allowed (without its sweep)",
        Usage(
            transactions=3, queries=3, reads=1, deletes=1, entities_read=17, entities_written=17,
            sends=3, messages=3,
        ),
        {"scheduler": 1, "replies": 1, AGENT: 1},
    ),
    "other agent": Count(
        "an order that comes alone: a circuit is open, and an alternative agent is asked",
        Usage(reads=5, entities_read=1),
    ),
    "claim check": Count(
        "the content of the order is large (100 KB)",
        Usage(queries=4, writes=1, entities_read=3, entities_written=1),
    ),
}  # fmt: skip
"""What each recovery, or other course, adds to ``ORDER``."""

SPANS_ORDER, SPANS_STEP, SPANS_SWEEP = 11, 3, 1
"""Spans of this system, each a record in the logs at a telemetry share of 1."""
METRICS_ORDER, METRICS_STEP, METRICS_SWEEP = 24, 2, 7
"""Points of metrics that are exported for an order that comes alone, and for a sweep."""
STORED_BYTES_ORDER, STORED_BYTES_STEP = 7_830, 1_530
"""What a finished order takes in Table Storage beside its content, which counts twice its length:
a row's keys, names and texts count two bytes a character.
"""
