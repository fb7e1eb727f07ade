"""A stand-in for the ingestion of Application Insights: takes telemetry and counts it."""

from __future__ import annotations

import gzip
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Ingestion:
    """The telemetry that came, by kind: items, bytes of JSON, and how each was authorized."""

    endpoint: str = ""
    sizes: Counter[str] = field(default_factory=Counter)
    items: Counter[str] = field(default_factory=Counter)
    schemes: Counter[str] = field(default_factory=Counter)

    async def track(self, request: web.Request) -> web.Response:
        body = await request.read()
        envelopes = json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        self.schemes[request.headers.get("Authorization", "").partition(" ")[0]] += len(envelopes)
        for envelope in envelopes:
            kind = envelope["data"]["baseType"]
            self.items[kind] += 1
            self.sizes[kind] += len(json.dumps(envelope))
        count = len(envelopes)
        return web.json_response({"itemsReceived": count, "itemsAccepted": count, "errors": []})


@asynccontextmanager
async def ingesting(tls: ssl.SSLContext | None = None) -> AsyncIterator[Ingestion]:
    """Serve on a free port of this machine, with TLS if there is a context for it."""
    ingestion = Ingestion()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", ingestion.track)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        scheme = "https" if tls else "http"
        ingestion.endpoint = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}/"
        yield ingestion
    finally:
        await runner.cleanup()
