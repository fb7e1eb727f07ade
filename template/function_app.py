"""The function app of this business. Azure, `func start` and `devstack up` start here."""

import orders
from sas import function_app

app = function_app(orders.business(), orders.AGENTS)
