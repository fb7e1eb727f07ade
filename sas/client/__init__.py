"""What a Python application uses to submit orders and to follow them.

::

    async with OrdersClient.from_environment(reply_queue="responses-web-shop") as client:
        receipt = await client.submit(NewOrder("A-1", {"customer_id": "ALFKI", ...}))
        async for notification in client.follow([receipt.order_id]):
            print(notification.type, notification.data.state)

``OrdersClient(connection_string, ...)`` connects to any other namespace than the one that ``sas``
finds. ``client.wait(order_id)`` returns the last notification of one order, ``client.events()``
yields those of every order. One client serves any number of such loops at the same time.

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
