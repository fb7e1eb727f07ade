"""The endpoint of the app's identity, as App Service has it.

App Service gives the app the address of the endpoint and a header (``IDENTITY_ENDPOINT``,
``IDENTITY_HEADER``); the endpoint gives a token for each resource. Azurite reads its tokens (their
audience, issuer and times; not who signed them), the broker takes any.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

CLIENT_ID = "5c1ad1e0-0000-4000-8000-000000000000"
TOKEN_S = 86_400


@dataclass
class Identity:
    """The endpoint that gives tokens, and how many it gave for each resource."""

    header: str = field(default_factory=lambda: secrets.token_hex(16))
    endpoint: str = ""
    tokens: Counter[str] = field(default_factory=Counter)

    def environment(self) -> dict[str, str]:
        """Return what App Service adds to the environment of the app."""
        return {"IDENTITY_ENDPOINT": self.endpoint, "IDENTITY_HEADER": self.header}

    async def answer(self, request: web.Request) -> web.Response:
        """Answer as App Service does (managed identity, REST endpoint, api-version 2019-08-01)."""
        query = request.query
        if request.headers.get("X-IDENTITY-HEADER") != self.header:
            return web.json_response({"message": "wrong X-IDENTITY-HEADER"}, status=401)
        if (query.get("api-version"), query.get("client_id")) != ("2019-08-01", CLIENT_ID):
            return web.json_response({"message": "no such identity"}, status=400)
        resource = query["resource"]
        self.tokens[resource] += 1
        end = int(time.time()) + TOKEN_S
        answer = {
            "access_token": _token(resource, end),
            "client_id": CLIENT_ID,
            "expires_on": str(end),
            "resource": resource,
            "token_type": "Bearer",
        }
        return web.json_response(answer)


@asynccontextmanager
async def identity() -> AsyncIterator[Identity]:
    """Serve the endpoint on a free port of this machine."""
    endpoint = Identity()
    app = web.Application()
    app.router.add_get("/msi/token", endpoint.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}/msi/token"
        yield endpoint
    finally:
        await runner.cleanup()


def _token(resource: str, end: int) -> str:
    about = {"aud": resource, "iss": "https://sts.windows.net/rehearsal/", "appid": CLIENT_ID}
    times = {"iat": end - TOKEN_S - 60, "nbf": end - TOKEN_S - 60, "exp": end}
    parts = ({"alg": "none", "typ": "JWT"}, about | times)
    texts = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return ".".join([*texts, "unsigned"])
