"""How a commit ends: ours, a rival's, or nothing is known.

Our own write is never mistaken for a rival's. After a refusal (404, 409, 412) or an
unknown outcome the journal row of this seq is read: it is immutable, so whatever a rival
did afterwards, it carries our commit id if and only if our transaction was written. If it
is absent after an unknown outcome, the very same transaction is tried again, never a new
decision: should the first arrive late, one of the two is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from sas.adapters import keys
from sas.adapters.commit import Operation
from sas.adapters.table import RefusedTransactionError, Table, UnknownOutcomeError
from sas.domain.change import Change
from sas.ports import ConflictError

OVERTAKEN = "W/\"datetime'2000-01-01T00%3A00%3A00.0000000Z'\""
"""The token of an order that we wrote and a rival changed before we saw our ETag. It matches
nothing, so that a commit upon it is refused as it must be.
"""


async def settle(
    table: Table, partition: str, change: Change, operations: Sequence[Operation]
) -> str:
    """Carry a transaction through to a known outcome; return the order's new token.

    Raises:
        ConflictError: a rival's write came first, or its cause was recorded already.
        StoreUnavailableError: after the last attempt it is still unknown; the same message
            coming again finds the cause in the journal if it was written.
    """
    left = list(operations)
    async with table.within_time():
        attempt = 1
        while True:
            try:
                etags = await table.transact(partition, left)
                return etags[0] or OVERTAKEN
            except RefusedTransactionError as refused:
                if (token := await _ours(table, partition, change)) is not None:
                    return token
                if not _is_lost_index_row(refused, left):
                    raise ConflictError(_conflict(change, refused)) from refused
                del left[refused.index]
            except UnknownOutcomeError as unknown:
                if (token := await _ours(table, partition, change)) is not None:
                    return token
                if attempt >= table.retry_budget.attempts:
                    raise table.unavailable(unknown.__cause__ or unknown) from unknown
                await table.retry_budget.pause(attempt)
                attempt += 1


async def _ours(table: Table, partition: str, change: Change) -> str | None:
    """Return our token if our transaction was written, None if no transaction was.

    Raises:
        ConflictError: a rival's was.
    """
    order_id, entry = change.after.order_id, change.entry
    journal = await table.get(partition, keys.journal(order_id, entry.seq))
    if journal is None:
        return None
    if journal["CommitId"] != entry.commit_id:
        raise ConflictError(
            f"order {order_id}: seq {entry.seq} was committed by {journal.get('By')} "
            f"({journal.get('What')})"
        )
    state = await table.get(partition, keys.state(order_id))
    if state is None or state["CommitId"] != entry.commit_id:
        return OVERTAKEN
    return str(state.metadata["etag"])


def _is_lost_index_row(refused: RefusedTransactionError, operations: list[Operation]) -> bool:
    """Whether only an index row to be deleted is missing: what is to be gone is gone.

    Without this an order whose due row somebody deleted by hand could never move again.
    """
    return refused.status == 404 and operations[refused.index].is_index_delete


def _conflict(change: Change, refused: RefusedTransactionError) -> str:
    return (
        f"order {change.after.order_id} changed since it was loaded (seq {change.entry.seq - 1}), "
        f"or its cause was recorded already: {refused}"
    )
