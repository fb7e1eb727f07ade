"""A stand-in for your remote services: python services.py PORT

It keeps the two rules of every remote service: the same Idempotency-Key again has no second effect,
and after a DELETE of a key a later POST with it is refused. `devstack up` names a directory in
DEVSTACK_DATA: what is kept there outlives `kill -9`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

ANSWERS: dict[str, dict[str, Any]] = {
    "/reservations": {"number": "{id}", "price": 40},
    "/charges": {"number": "{id}"},
}
"""What a POST to each path answers. {id} becomes a number of its own."""
REFUSED = {"/charges": ("card", "declined", "card-declined")}
"""A POST whose body has this member with this value is refused, with this code."""


class Services:
    """All services, on one port."""

    def __init__(self, file: Path | None = None) -> None:
        self.effects: dict[str, dict[str, Any]] = {}
        self.undone: dict[str, bool] = {}
        self._file = file
        if file and file.exists():
            self.effects, self.undone = json.loads(file.read_text(encoding="utf-8"))

    async def post(self, request: web.Request) -> web.Response:
        """Have an effect, once for each key."""
        key, body = request.headers["Idempotency-Key"], await request.json()
        if key in self.undone:
            return web.json_response({"type": "undone", "detail": "it was undone"}, status=409)
        member, value, code = REFUSED.get(request.path, ("", None, ""))
        if member and body.get(member) == value:
            detail = f"{member} is {value}"
            return web.json_response({"type": code, "detail": detail}, status=422)
        text = json.dumps(ANSWERS[request.path]).replace("{id}", f"N-{len(self.effects) + 1}")
        effect = self.effects.setdefault(key, json.loads(text))
        self._keep()
        return web.json_response(effect, status=201)

    async def delete(self, request: web.Request) -> web.Response:
        """Undo, and remember it."""
        key = request.headers["Idempotency-Key"]
        is_undone = self.undone.setdefault(key, self.effects.pop(key, None) is not None)
        self._keep()
        return web.json_response({"undone": is_undone})

    async def show(self, _request: web.Request) -> web.Response:
        """Show the effects that are in force."""
        return web.json_response(self.effects)

    def app(self) -> web.Application:
        """Return the web application."""
        app = web.Application()
        app.add_routes([web.get("/", self.show)])
        for path in ANSWERS:
            app.add_routes([web.post(path, self.post), web.delete(path, self.delete)])
            app.add_routes([web.delete(path + "/{name}", self.delete)])
        return app

    def _keep(self) -> None:
        if self._file:
            part = self._file.with_suffix(".part")
            part.write_text(json.dumps([self.effects, self.undone]), encoding="utf-8")
            part.replace(self._file)


def main(port: int) -> None:
    """Serve until Ctrl-C."""
    data = os.environ.get("DEVSTACK_DATA")
    services = Services(Path(data, "services.json") if data else None)
    try:
        web.run_app(services.app(), host="127.0.0.1", port=port, print=None)
    except OSError as error:
        sys.exit(
            f"services.py cannot listen on port {port} ({error.strerror}): stop what listens "
            f"there, or change {port} in the Makefile (target up) and in local.settings.json"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
