"""The business: one workflow of two steps. Make it yours."""

from __future__ import annotations

import os
from collections.abc import Mapping

from orders.agents import PaymentAgent, StockAgent
from orders.content import check
from orders.workflows import workflows
from sas import Agent, Business, HttpService, SettingError

AGENTS = ("stock", "payment")
"""The names of the agents. Each has a function and a request queue (infra/queues.json)."""


def business(environ: Mapping[str, str] | None = None) -> Business:
    """Return the workflows, agents and checks. The settings name the remote services."""
    env = os.environ if environ is None else environ
    agents: dict[str, Agent] = {
        "stock": StockAgent(_service(env, "stock", "STOCK_URL")),
        "payment": PaymentAgent(_service(env, "payment", "PAYMENT_URL")),
    }
    return Business(workflows=workflows(), agents=agents, checks={"order": check})


def _service(env: Mapping[str, str], name: str, setting: str) -> HttpService:
    address = env.get(setting, "")
    if not address.startswith(("http://", "https://")):
        raise SettingError(f"{setting}={address!r}: give the http(s) address of the {name} service")
    return HttpService(name, address, attempt_seconds=10)
