"""The function app of this business. Azure, `func start` and `devstack up` start here."""

from orders import orders
from sas import function_app

app = function_app(orders)
