"""What keeps others out of a server on this machine: other web pages, and other users.

A page of another site can send requests to this machine, and DNS rebinding can give our address to
a name of that site. So every request must name our host. It must also carry the cookie of the
login, unless it asks for the login or for a static file. A POST must come from our origin, and have
the token of its form. The login link works once, and its secret never appears in a URL again.

A browser sends a cookie to every port of 127.0.0.1, and another user may serve one of these ports.
So the pages are below a path that only the browser with the login knows (``place``), and the cookie
is for that path.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC: Final = {
    "desk.css": "text/css",
    "desk.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
OPEN_PATHS: Final = frozenset({"/login", *(f"/static/{name}" for name in STATIC)})
FORM_TOKEN: Final = "token"  # noqa: S105  the name of a field


class Guard:
    """Checks every request. ``port`` is known once the server listens."""

    def __init__(self, refused: Callable[[int, str], web.Response]) -> None:
        self.port = 0
        self.form_token = secrets.token_urlsafe(24)
        self.place: Final = f"/{secrets.token_urlsafe(16)}/"
        self._session = secrets.token_urlsafe(32)
        self._links: set[str] = set()
        self._refused = refused
        self.logged_in: Callable[[], None] = lambda: None
        """Called after a browser has logged in with a link."""

    @property
    def hosts(self) -> frozenset[str]:
        """The names of this server that a request may use."""
        return frozenset({f"127.0.0.1:{self.port}", f"localhost:{self.port}"})

    @property
    def cookie(self) -> str:
        """The name of the cookie: a server on another port cannot set one of this name."""
        return f"sas_desk_{self.place.strip('/')}"

    def new_link(self) -> str:
        """Return a link that logs in one browser, once."""
        secret = secrets.token_urlsafe(24)
        self._links = {secret}  # an older link is not valid any more
        return f"http://127.0.0.1:{self.port}/login?once={secret}"

    def log_in(self, request: web.Request) -> web.Response | None:
        """Return the answer that gives a browser its cookie; None if the link is not valid.

        It is no redirect: a browser that comes from elsewhere would not send the cookie along.
        """
        secret = request.query.get("once", "")
        if not any(_same(secret, link) for link in self._links):
            return None
        self._links.clear()
        self.logged_in()
        answer = web.Response(
            text='<!doctype html><title>Desk</title><link rel="icon" href="/static/icon.svg">',
            content_type="text/html",
            headers={"Refresh": f"0; url={self.place}"},
        )
        answer.set_cookie(
            self.cookie, self._session, httponly=True, samesite="Strict", path=self.place
        )
        return answer

    def middleware(self) -> Middleware:
        """Return the middleware that lets only our own requests through."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            problem = self._problem(request) or await self._form_problem(request)
            answer = self._refused(*problem) if problem else await handler(request)
            if not answer.prepared:
                answer.headers.update(HEADERS)
            return answer

        return guard

    def _problem(self, request: web.Request) -> tuple[int, str] | None:
        if request.host not in self.hosts:
            return 421, f"This server answers as 127.0.0.1:{self.port} only."
        if request.method not in {"GET", "HEAD", "POST"}:
            return 405, "Only GET and POST are answered here."
        if request.path in OPEN_PATHS:
            return None
        if not _same(request.cookies.get(self.cookie, ""), self._session):
            return 403, "Open the link that `sas desk` printed in its terminal. It works once."
        return None

    async def _form_problem(self, request: web.Request) -> tuple[int, str] | None:
        if request.method != "POST":
            return None
        if request.headers.get("Origin") not in {f"http://{host}" for host in self.hosts}:
            return 403, "This form was sent by another site. Nothing was done."
        if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            return 403, "This form was sent by another site. Nothing was done."
        token = (await request.post()).get(FORM_TOKEN, "")
        if not isinstance(token, str) or not _same(token, self.form_token):
            return 403, "This form is of an older start of the desk. Load the page again."
        return None


def _same(text: str, secret: str) -> bool:
    """Compare in constant time, so that nobody can guess a secret letter by letter."""
    return hmac.compare_digest(text.encode("utf-8", "surrogateescape"), secret.encode())
