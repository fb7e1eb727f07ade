"""The business of the sample, for tests of the whole."""

from __future__ import annotations

import orders
from sas.saga import business_of, sagas_of

BUSINESS = business_of(sagas_of(orders))
AGENTS = tuple(BUSINESS.agents)
WORKFLOWS = BUSINESS.workflows
