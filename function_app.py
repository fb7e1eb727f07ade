"""The function app of this business. ``sas.functions`` has the triggers."""

import orders
from sas import function_app

app = function_app(orders.business(), orders.AGENTS)
