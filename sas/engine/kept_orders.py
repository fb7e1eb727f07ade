"""Orders that this process committed last: the next message of such an order needs no read.

A kept order may be old, because another instance may have changed the stored one. That costs one
refused commit and never leads to a wrong decision: its ETag guards the commit, as it guards every
other one (docs/adr/0026).
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
        found = self._orders.get(order_id)
        return found[0] if found is not None and found[0].seq >= seq else None

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
            _, (_, gone) = self._orders.popitem(last=False)
            self._bytes -= gone

    def forget(self, order_id: str) -> None:
        """Forget an order: another instance changed it."""
        _, size = self._orders.pop(order_id, (None, 0))
        self._bytes -= size


def _bytes_of(order: Order) -> int:
    contents = [order.details.payload]
    for step in order.steps:
        contents += [one for one in (step.result, step.call.edited) if one is not None]
    return _RECORD_BYTES + sum(size_of(content) for content in contents)
