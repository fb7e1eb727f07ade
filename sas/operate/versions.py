"""What a deploy would break: the versions of workflows against the orders in flight with them.

An order keeps the version of its workflow that it was submitted with. That version must still
exist, with the same steps, order, agents, undos and reaction to a failure. Times and thresholds may
change. The stored content and results of the order must fit the types of the application.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum

from sas.codec.payloads import decode_order
from sas.domain.order import FINISHED, Order
from sas.domain.workflow import Workflow, Workflows
from sas.features.claim_check import ClaimCheck
from sas.features.version_check import definition_hash, value_name
from sas.operate import finding
from sas.operate.record import Record
from sas.ports import Business, PayloadCodec, StateStore
from sas.saga.shapes import Shapes, shapes_of


class Break(Enum):
    """How a deploy would break orders in flight. ``_TROUBLE`` says it in words."""

    MISSING = "missing"
    CHANGED = "changed"
    OTHER_STEPS = "other-steps"
    MISFIT = "misfit"


_TROUBLE = {
    Break.MISSING: "missing: keep this version until its orders have ended",
    Break.CHANGED: "changed: give the new definition a version of its own and keep the old one",
    Break.OTHER_STEPS: "changed: orders in flight have other steps",
    Break.MISFIT: "{misfit}: a step that reads it would be held. Let the type take both, or give "
    "the new one a version of its own",
}


class WorkflowVersion(Record, frozen=True, kw_only=True):
    """One version of a workflow that is defined, or that orders in flight use.

    ``recorded`` says whether the table remembers a definition, ``changed`` whether it is another
    one. ``trouble`` says in words how a deploy ``breaks`` orders in flight, and what to do.
    ``misfits`` says of each such order what no longer fits the types; ``in_flight`` has their ids.
    """

    workflow: str
    version: int
    defined: bool
    recorded: bool
    changed: bool
    breaks: Break | None
    trouble: str | None
    misfits: list[str]
    in_flight: list[str]


@dataclass(slots=True, kw_only=True)
class _Uses:
    """The definition of a version, and the orders in flight that were counted for it so far.

    ``other_steps`` counts those whose steps differ from the definition.
    """

    definition: Workflow | None = None
    shapes: Shapes | None = None
    ids: list[str] = field(default_factory=list)
    other_steps: int = 0
    misfits: list[str] = field(default_factory=list)

    def breaks(self, *, is_changed: bool) -> Break | None:
        """Return how a deploy would break orders in flight; None if it would not."""
        if self.definition is None:
            return Break.MISSING
        if is_changed:
            return Break.CHANGED
        if self.other_steps:
            return Break.OTHER_STEPS
        return Break.MISFIT if self.misfits else None


async def versions(
    store: StateStore, application: Workflows | Business, codec: PayloadCodec | None
) -> list[WorkflowVersion]:
    """Return every version that the application defines or that an order in flight uses.

    ``codec`` decodes the contents, if the application has no codec of its own.
    """
    uses: dict[tuple[str, int], _Uses] = defaultdict(_Uses)
    business = application if isinstance(application, Business) else None
    for workflow in application.workflows if isinstance(application, Business) else application:
        shapes = shapes_of(business, workflow) if business else None
        uses[workflow.name, workflow.version] = _Uses(definition=workflow, shapes=shapes)
    codec = (business and business.codec) or codec
    async for order in _in_flight(store):
        await _count(order, uses[order.details.workflow, order.details.version], store, codec)
    return [await _version(store, name, use) for name, use in sorted(uses.items())]


async def _count(order: Order, use: _Uses, store: StateStore, codec: PayloadCodec | None) -> None:
    """Count an order in flight for its version."""
    use.ids.append(order.order_id)
    names = [step.name for step in use.definition.steps] if use.definition else []
    if [step.name for step in order.steps] != names:
        use.other_steps += 1
    elif use.shapes is not None:
        decoded_order = decode_order(await ClaimCheck(store).fetch_all(order), codec)
        use.misfits += [
            f"order {order.order_id}: {misfit}" for misfit in use.shapes.misfits(decoded_order)
        ]


async def _version(store: StateStore, name: tuple[str, int], use: _Uses) -> WorkflowVersion:
    shared = await store.read_shared(value_name(*name))
    is_changed = bool(shared and use.definition and shared.value != definition_hash(use.definition))
    breaks, rest = use.breaks(is_changed=is_changed), len(use.misfits) - 1
    misfit = f"{''.join(use.misfits[:1])}{f' (and {rest:,} more)' if rest > 0 else ''}"
    return WorkflowVersion(
        workflow=name[0],
        version=name[1],
        defined=use.definition is not None,
        recorded=shared is not None,
        changed=is_changed,
        breaks=breaks,
        trouble=_TROUBLE[breaks].format(misfit=misfit) if breaks else None,
        misfits=use.misfits,
        in_flight=use.ids,
    )


async def _in_flight(store: StateStore) -> AsyncIterator[Order]:
    ids = dict.fromkeys(await finding.under_way(store))
    async for summaries in finding.summaries(store, in_error=True):
        ids.update((summary.order_id, None) for summary in summaries)
    for batch in finding.batched(list(ids)):
        for order in await finding.load_all(store, batch):
            if not order.rejected and order.process_state not in FINISHED:
                yield order
