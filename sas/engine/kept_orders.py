"""Orders that this process committed last: the next message of such an order needs no read.

A three-step order would otherwise take nine storage requests, and four of them would read what the
same process wrote some milliseconds before. A read is the most expensive request of all.

1. **Keep.** After each commit the order is kept, with the ETag of its new state row.
2. **Find.** A wake or a reply carries the seq of the journal row that sent it. A kept order that is
   older than this seq cannot have that change in it, so it is not used. The seq shows that without
   a request, and the order is loaded.
3. **Decide.** The runner decides about the kept order first (``sas.engine.transition``). If there
   is nothing to decide, or an incident would be reported, it loads the order and decides anew. So
   an old order is never the reason to do nothing, or to alert anybody.
4. **Commit.** The transaction demands the kept ETag. It also creates the journal row of the next
   seq, and the cause row.
5. **Forget.** The order is forgotten before each commit, and kept again after it. So when the
   answer to a commit is lost, no old order stays.

Why an old order never leads to a wrong decision: a decision is a pure function of an order, and
nothing is sent before the commit. If another instance has changed the stored order, its ETag
differs and 4 is refused. So every decision that is committed was made about the order as it is
stored. An old order costs one refused commit, and the next decision is about the loaded order.

One part of an order is written without its ETag: the last error of a step. A kept order may have an
old one, and no decision depends on it. The supervisor, an operator's command and a callback carry
no seq, so they always load the order.
"""

from __future__ import annotations

from collections import OrderedDict

from sas.domain.content import size_of
from sas.domain.order import FINISHED, Order, OrderState

BYTES_MAX = 32 * 1024 * 1024
"""Most bytes of content that one process keeps."""
_AT_REST = FINISHED | {OrderState.REJECTED, OrderState.ERROR}
_RECORD_BYTES = 4096
"""An allowance for what an order holds beside its content."""


class KeptOrders:
    """The orders that one process committed last, at most ``bytes_max`` bytes of them.

    With ``bytes_max`` 0 none is kept, and every decision reads its order.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._orders: OrderedDict[str, tuple[Order, int]] = OrderedDict()

    def find(self, order_id: str, seq: int) -> Order | None:
        """Return an order as it was committed last; None if it is not kept or is older than seq."""
        order, _ = self._orders.get(order_id, (None, 0))
        return order if order is not None and order.seq >= seq else None

    def keep(self, order: Order) -> None:
        """Keep an order in place of its older version, unless it is large, at an end or in Error.

        An order in Error waits for an operator, whose commands load it.

        The answers to two commits may come in the wrong order, so a newer version is not replaced.
        """
        if self.find(order.order_id, order.seq) is not None:
            return
        self.forget(order.order_id)
        size = _bytes_of(order)
        if order.process_state in _AT_REST or size > self._bytes_max:
            return
        self._orders[order.order_id] = order, size
        self._bytes += size
        while self._bytes > self._bytes_max:
            _, (_, oldest_size) = self._orders.popitem(last=False)
            self._bytes -= oldest_size

    def forget(self, order_id: str) -> None:
        """Forget an order: another instance changed it."""
        _, size = self._orders.pop(order_id, (None, 0))
        self._bytes -= size


def _bytes_of(order: Order) -> int:
    contents = [order.details.payload]
    for step in order.steps:
        contents += [part for part in (step.result, step.call.edited) if part is not None]
    return _RECORD_BYTES + sum(size_of(content) for content in contents)
