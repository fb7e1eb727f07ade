"""The business of the sample. Replace this folder with your own.

``function_app.py`` uses ``AGENTS`` and ``business()``, and nothing else of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta

from orders.agents import (
    DeliveryAgent,
    InventoryAgent,
    InvoiceAgent,
    PaymentAgent,
    ShippingAgent,
)
from orders.content import check
from orders.workflows import workflows
from sas import Agent, Business, HttpService, SettingError

AGENTS = ("inventory", "payment", "shipping", "invoice", "delivery")
"""The names of the agents. Each has a function and a request queue."""


def business(environ: Mapping[str, str] | None = None) -> Business:
    """Return the workflows, agents and checks. The settings name the remote services.

    Raises:
        SettingError: naming the setting that is missing or wrong.
    """
    env = os.environ if environ is None else environ
    agents: dict[str, Agent] = {
        "inventory": InventoryAgent(_service(env, "stock", "ORDERS_STOCK_URL")),
        "payment": PaymentAgent(_service(env, "payment", "ORDERS_PAYMENT_URL")),
        "shipping": ShippingAgent(_service(env, "shipping", "ORDERS_SHIPPING_URL")),
        "invoice": InvoiceAgent(_service(env, "mail", "ORDERS_MAIL_URL")),
        "delivery": DeliveryAgent(
            _service(env, "carrier", "ORDERS_CARRIER_URL"), _callback_time(env)
        ),
    }
    seconds = _seconds(env, "ORDERS_TIME_ALLOWED_SECONDS", 30.0)
    return Business(
        workflows=workflows(timedelta(seconds=seconds)),
        agents=agents,
        checks=dict.fromkeys(("order", "order-with-care", "order-delivered"), check),
        inline=_inline(env),
    )


def _inline(env: Mapping[str, str]) -> list[str]:
    """Return the agents whose services answer so fast that no queue is needed before them."""
    names = [name.strip() for name in env.get("ORDERS_INLINE_AGENTS", "").split(",")]
    unknown = sorted({*names} - {*AGENTS, ""})
    if unknown:
        raise SettingError(
            f"ORDERS_INLINE_AGENTS names {', '.join(unknown)}: give some of {', '.join(AGENTS)}"
        )
    return [name for name in names if name]


def _service(env: Mapping[str, str], name: str, setting: str) -> HttpService:
    address = env.get(setting, "")
    if not address.startswith(("http://", "https://")):
        raise SettingError(f"{setting}={address!r}: give the http(s) address of the {name} service")
    attempt = _seconds(env, "ORDERS_ATTEMPT_SECONDS", 10.0)
    return HttpService(name, address, attempt_seconds=attempt)


def _callback_time(env: Mapping[str, str]) -> timedelta | None:
    """Return how long the carrier has for its callback; None if the agent asks it instead."""
    if not env.get("ORDERS_CARRIER_TELLS_SECONDS"):
        return None
    if not (env.get("SAS_CALLBACK_KEY") and env.get("SAS_CALLBACK_URL")):
        raise SettingError(
            "ORDERS_CARRIER_TELLS_SECONDS needs SAS_CALLBACK_KEY and SAS_CALLBACK_URL: give both, "
            "or leave it out and the agent asks the carrier"
        )
    return timedelta(seconds=_seconds(env, "ORDERS_CARRIER_TELLS_SECONDS", 0.0))


def _seconds(env: Mapping[str, str], setting: str, default: float) -> float:
    text = env.get(setting, str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise SettingError(f"{setting}={text!r}: give seconds, more than 0 and at most a day")
    return value
