"""What a Python application uses to submit orders and to follow them.

::

    async with OrdersClient(connection_string, reply_queue="responses-web-shop") as client:
        receipt = await client.submit(NewOrder("A-1", {"customer_id": "ALFKI", ...}))
        async for notification in client.follow([receipt.order_id]):
            print(notification.type, notification.data.state)

Applications in other languages send the same JSON: see docs/contract.
"""

from sas.client.client import (
    FollowError,
    InvalidOrderError,
    NewOrder,
    OrdersClient,
    Receipt,
    SubmitError,
    is_end,
)

__all__ = [
    "FollowError",
    "InvalidOrderError",
    "NewOrder",
    "OrdersClient",
    "Receipt",
    "SubmitError",
    "is_end",
]
