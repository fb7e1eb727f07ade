"""HTTP triggers over a real socket: routes, keys, answers."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from devstack.functions.host import Host

pytestmark = pytest.mark.asyncio(loop_scope="module")

APP = """
import asyncio, sys
import azure.functions as func
app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)

@app.route("orders/{id:int}", methods=["GET", "DELETE"])
def by_number(req: func.HttpRequest) -> func.HttpResponse:
    return func.HttpResponse(f"{req.method} {req.route_params['id']}", status_code=203)

@app.route("orders/{name}")
async def by_name(req: func.HttpRequest) -> str:
    return f"{req.route_params['name']} {sorted(req.params.items())}"

@app.route("echo", methods=["POST"])
def echo(req: func.HttpRequest) -> func.HttpResponse:
    response = func.HttpResponse(req.get_body(), mimetype=req.headers["content-type"])
    response.headers.add("Set-Cookie", "a=1; Path=/")
    response.headers.add("Set-Cookie", "b=2; HttpOnly")
    return response

@app.route("broken")
def broken(req: func.HttpRequest) -> str:
    raise ValueError("secret detail")

@app.route("status/{code}")
def status(req: func.HttpRequest) -> func.HttpResponse:
    return func.HttpResponse("x", status_code=int(req.route_params["code"]))

@app.route("framed")
def framed(req: func.HttpRequest) -> func.HttpResponse:
    headers = {"Content-Length": "3", "Transfer-Encoding": "chunked", "X-Kept": "yes"}
    return func.HttpResponse("hello", headers=headers)

@app.route("leaves")
def leaves(req: func.HttpRequest) -> str:
    sys.exit(3)

@app.route("gives-up")
async def gives_up(req: func.HttpRequest) -> str:
    raise asyncio.CancelledError

@app.route("nothing")
def nothing(req: func.HttpRequest) -> func.HttpResponse:
    return func.HttpResponse(status_code=204)

@app.route("closed", auth_level=func.AuthLevel.FUNCTION)
def closed(req: func.HttpRequest) -> str:
    return "in"

@app.route()
def unnamed(req: func.HttpRequest) -> str:
    return "by its name"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[aiohttp.ClientSession]:
    app_dir = tmp_path_factory.mktemp("http")
    (app_dir / "function_app.py").write_text(APP)
    (app_dir / "host.json").write_text('{"version": "2.0"}')
    host = Host(app_dir)
    await host.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{host.http_port}") as opened:
        yield opened
    await host.stop()


async def answer(
    session: aiohttp.ClientSession, method: str, path: str, **options: object
) -> tuple[int, str]:
    async with session.request(method, path, **options) as response:  # type: ignore[arg-type]
        return response.status, await response.text()


async def test_a_request_gets_the_answer_of_its_route(session: aiohttp.ClientSession) -> None:
    for method, path, expected in (
        ("GET", "/api/orders/12", (203, "GET 12")),
        ("DELETE", "/API/Orders/12", (203, "DELETE 12")),
        ("GET", "/api/orders/ann?b=2&a=1&empty=", (200, "ann [('a', '1'), ('b', '2')]")),
        ("POST", "/api/orders/12", (200, "12 []")),
        ("GET", "/api/unnamed", (200, "by its name")),
        ("GET", "/api/echo", (404, "")),  # as in Azure, where 405 is wished for
        ("HEAD", "/api/echo", (404, "")),
        ("GET", "/api/nowhere", (404, "")),
        ("GET", "/orders/12", (404, "")),
        ("GET", "/api/nothing", (204, "")),
        ("GET", "/api/closed", (200, "in")),  # without a key, as with the Core Tools
        ("GET", "/api/broken", (500, "")),
        ("GET", "/api/status/999", (999, "x")),
        ("GET", "/api/status/1000", (500, "")),
        ("GET", "/api/status/99", (500, "")),
        ("GET", "/api/framed", (200, "hello")),
        ("GET", "/api/leaves", (500, "")),
        ("GET", "/api/gives-up", (500, "")),
        ("GET", "/admin/host/ping", (200, "")),
    ):
        assert await answer(session, method, path) == expected


async def test_bodies_headers_and_cookies_arrive_as_they_were_given(
    session: aiohttp.ClientSession,
) -> None:
    body, headers = b"\x00\xffbytes", {"content-type": "application/octet-stream"}
    async with session.post("/api/echo", data=body, headers=headers) as response:
        assert await response.read() == body
        assert response.headers["Content-Type"] == "application/octet-stream"
        cookies = response.headers.getall("Set-Cookie")
    assert [cookie.split(";")[0] for cookie in cookies] == ["a=1", "b=2"]
    assert "HttpOnly" in cookies[1]
