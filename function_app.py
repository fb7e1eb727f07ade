"""The function app of this business. ``sas.functions`` has the triggers."""

from orders import delivered, orders, with_care
from sas import function_app

app = function_app(orders, with_care, delivered)
