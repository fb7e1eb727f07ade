"""The same app under this host and under Microsoft's own worker core: equal results.

Every case is made once (real messages from the broker, a timer, HTTP requests), converted to
datums by this host, and then invoked twice: by the host's invoker here, and by
`azure-functions-runtime` in a process of its own (`host_worker_driver`; one process per app
is its rule). What the functions saw, what they gave back and how they failed must be
the same, and both must agree on which apps can be indexed.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp.test_utils
import pytest
from azure.functions.meta import Datum
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from multidict import CIMultiDict

from devstack.functions import metadata
from devstack.functions.bindings import IndexingError
from devstack.functions.http import request_datum
from devstack.functions.indexing import bind, find, imported
from devstack.functions.invocation import Invoker
from devstack.functions.settings import Settings
from devstack.servicebus import Broker
from devstack.tests.stack_kit import ROOT
from devstack.tests.worker_core import packed

APP = """
import datetime, json, typing
import azure.functions as func

app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
bp = func.Blueprint()
seen = []

def queue(arg_name="msg", **more):
    return app.service_bus_queue_trigger(
        arg_name=arg_name, connection="SB", queue_name="q", **more)

def plain(value):
    if isinstance(value, bytes):
        return "bytes:" + value.hex()
    if isinstance(value, (datetime.datetime, datetime.timedelta)):
        return repr(value)
    return value

FIELDS = [
    "application_properties", "content_type", "correlation_id", "dead_letter_source",
    "dead_letter_reason", "delivery_count", "enqueued_time_utc", "expires_at_utc", "label",
    "locked_until", "lock_token", "message_id", "partition_key", "reply_to",
    "reply_to_session_id", "scheduled_enqueue_time_utc", "sequence_number", "session_id",
    "state", "subject", "time_to_live", "to", "transaction_partition_key", "user_properties",
]

def described(msg):
    return {"body": plain(msg.get_body())} | {n: plain(getattr(msg, n)) for n in FIELDS}

@queue()
def typed(msg: func.ServiceBusMessage) -> None:
    seen.append(described(msg))

@queue()
async def untyped(msg) -> None:
    seen.append(described(msg))

@queue()
def as_text(msg: str) -> None:
    seen.append(msg)

@queue(data_type=func.DataType.BINARY)
def typed_binary(msg: func.ServiceBusMessage) -> None:
    seen.append(described(msg) | {"metadata": msg.metadata, "type": type(msg).__qualname__})

@queue(data_type=func.DataType.BINARY)
def as_bytes(msg: bytes) -> None:
    seen.append(plain(msg))

@queue(cardinality=func.Cardinality.MANY)
def batch(msg: typing.List[func.ServiceBusMessage]) -> None:
    seen.append([described(one) for one in msg])

@queue()
@app.service_bus_queue_output(arg_name="out", connection="SB", queue_name="o")
def output(msg: str, out: func.Out[str]) -> None:
    out.set("out " + msg)

@queue()
@app.service_bus_queue_output(arg_name="out", connection="SB", queue_name="o")
def listing(msg: str, out: func.Out[str]) -> None:
    out.set([msg, {"n": 1}])

@queue()
@app.service_bus_queue_output(arg_name="$return", connection="SB", queue_name="o")
async def returning(msg: str) -> str:
    return "returned " + msg

@queue()
def failing(msg: str) -> None:
    raise LookupError("as asked")

@queue()
def stray_return(msg: str):
    return 1

@queue()
@app.service_bus_queue_output(arg_name="out", connection="SB", queue_name="o")
def wrong_output(msg: str, out: func.Out[str]) -> None:
    out.set(object())

@queue()
def with_context(msg: str, context: func.Context) -> None:
    seen.append([context.function_name, context.retry_context.retry_count,
                 context.thread_local_storage.invocation_id == context.invocation_id])

@bp.timer_trigger(arg_name="t", schedule="0 */5 * * * *")
async def timer(t: func.TimerRequest) -> None:
    seen.append([t.past_due, t.schedule_status, t.schedule])

app.register_functions(bp)

@app.route("web/{id}")
async def web(req: func.HttpRequest) -> func.HttpResponse:
    seen.append([req.method, req.url, dict(req.headers), dict(req.params),
                 dict(req.route_params), plain(req.get_body())])
    return func.HttpResponse(json.dumps({"id": req.route_params["id"]}), status_code=202,
                             mimetype="application/json", headers={"x-a": "1"})

@app.route("text")
def web_text(req: func.HttpRequest) -> str:
    return "plain"
"""
SETTINGS = {"SB": "Endpoint=sb://x;SharedAccessKeyName=R;SharedAccessKey=K"}
Case = dict[str, Any]


# ---------------------------------------------------------------- the cases


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(["q"]) as running:
        yield running


async def service_bus_cases(broker: Broker) -> list[Case]:
    messages = [
        ServiceBusMessage(
            b"full",
            message_id="m-1",
            correlation_id="c-1",
            subject="s",
            content_type="text/plain",
            reply_to="r",
            to="t",
            reply_to_session_id="rs",
            partition_key="p",
            application_properties={"text": "a", "number": 3, "truth": True, "real": 1.5},
        ),
        ServiceBusMessage('{"correlationId": "forged", "n": {"deep": [1]}, "deliveryCount": 9}'),
        ServiceBusMessage('{"ApplicationProperties": "forged"}'),
        ServiceBusMessage(b"\xff\xfe\x00binary", message_id="m-4"),
        ServiceBusMessage(b"", message_id="m-5"),
    ]
    async with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        async with client.get_queue_sender("q") as sender:
            await sender.send_messages(messages)
        async with client.get_queue_receiver("q") as receiver:
            received: list[ServiceBusReceivedMessage] = []
            async with asyncio.timeout(120):
                while missing := len(messages) - len(received):
                    received += await receiver.receive_messages(missing, max_wait_time=60)
            names = ["typed", "untyped", "as_text"]
            cases = [
                case(name, *metadata.single(message, binary=False))
                for message in received
                for name in names
            ]
            cases += [
                case(name, *metadata.single(message, binary=True))
                for message in received
                for name in ("as_bytes", "typed_binary")
            ]
            # An empty body is dropped from a batch of text, and then the batch cannot be read.
            cases += [case("batch", *metadata.batch(received[:-1], binary=False))]
            cases += [case("batch", *metadata.batch(received, binary=False))]
            cases += [case("batch", *metadata.batch(received, binary=True))]
            rest = ["output", "listing", "returning", "failing", "stray_return", "wrong_output"]
            for name in [*rest, "with_context"]:
                cases.append(case(name, *metadata.single(received[0], binary=False)))
    return cases


async def other_cases() -> list[Case]:
    info = {"Schedule": {"AdjustForDST": True}, "ScheduleStatus": None, "IsPastDue": True}
    status = {"Last": "2026-03-14T12:00:00+00:00", "Next": "x", "LastUpdated": "y"}
    timers = [info, info | {"ScheduleStatus": status, "IsPastDue": False}]
    cases = [case("timer", Datum(json.dumps(content), "json"), {}) for content in timers]
    headers = CIMultiDict({"Host": "h", "X-Both": "Case", "X-Empty": ""})
    for path in ("/api/web/7?a=1&a=2&b=", "/api/web/7"):
        request = aiohttp.test_utils.make_mocked_request("POST", path, headers=headers)
        request._read_bytes = b'{"body": 1}'
        cases.append(case("web", await request_datum(request, {"id": "7"}), {}))
    cases.append(case("web_text", await request_datum(request, {}), {}))
    return cases


def case(name: str, datum: Datum, trigger_metadata: Mapping[str, Datum]) -> Case:
    return {"function": name, "datum": datum, "metadata": trigger_metadata}


# ---------------------------------------------------------------- the two ways to run them


async def under_this_host(app_dir: Path, cases: list[Case]) -> list[Any]:
    invoker = Invoker(Settings({}), timeout_s=None)
    results: list[Any] = []
    with imported(app_dir) as module:
        functions = {f.name: bind(f, app_dir, Settings(SETTINGS)) for f in find(module)}
        for example in cases:
            module.seen.clear()
            try:
                result = await invoker.invoke(
                    functions[example["function"]],
                    example["datum"],
                    example["metadata"],
                    reason="test",
                )
            except Exception as error:  # noqa: BLE001  # compared by whether, not by which
                results.append(["failed", list(module.seen), bool(str(error))])
                continue
            outputs = {name: sent(datum) for name, datum in result.outputs.items()}
            results.append(["ok", list(module.seen), outputs, sent(result.returned)])
    invoker.close()
    return results


def sent(datum: Datum | None) -> Any:
    if datum is None or datum.type is None:
        return None
    if datum.type == "http":
        value = datum.value
        headers = {name: header.value for name, header in value["headers"].items()}
        return [value["status_code"].value, headers, value["body"].value.decode()]
    if datum.type in {"dict", "list"}:
        return ["json", json.dumps(datum.value)]
    return [datum.type, datum.value]


def under_worker_core(app_dir: Path, cases: list[Case]) -> list[Any]:
    work = [
        {
            "function": example["function"],
            "datum": packed(example["datum"]),
            "metadata": {name: packed(datum) for name, datum in example["metadata"].items()},
        }
        for example in cases
    ]
    (app_dir / "cases.json").write_text(json.dumps(work))
    return driven(app_dir)["results"]  # type: ignore[no-any-return]


def driven(app_dir: Path) -> dict[str, Any]:
    process = subprocess.run(
        [sys.executable, "-m", "devstack.tests.integration.host_worker_driver", str(app_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    outcome: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return outcome


async def test_functions_see_and_give_the_same_under_this_host_and_the_worker_core(
    tmp_path: Path, broker: Broker
) -> None:
    pytest.importorskip("azure_functions_runtime")
    (tmp_path / "function_app.py").write_text(APP)
    cases = await service_bus_cases(broker) + await other_cases()
    ours = await under_this_host(tmp_path, cases)
    theirs = await asyncio.to_thread(under_worker_core, tmp_path, cases)
    for example, our, their in zip(cases, ours, theirs, strict=True):
        assert json.loads(json.dumps(our)) == their, example["function"]
    outcomes = [our[0] for our in ours]
    # Forged ApplicationProperties fail two, the empty body its batch, three fail by themselves.
    assert (len(outcomes), outcomes.count("failed")) == (40, 6)


HEAD = "import typing\nimport azure.functions as func\napp = func.FunctionApp()\n"
QUEUE = '@app.service_bus_queue_trigger(arg_name="msg", connection="SB", queue_name="q")\n'
OUT = '@app.service_bus_queue_output(arg_name="out", connection="SB", queue_name="o")\n'


APPS = [
    QUEUE + "def f(msg: func.ServiceBusMessage) -> None: ...\n",
    QUEUE + "def f(msg: typing.Optional[func.ServiceBusMessage]): ...\n",
    QUEUE + "def f(msg: list[func.ServiceBusMessage]): ...\n",
    QUEUE + "def f(msg, context: int): ...\n",
    QUEUE + OUT + "def f(msg, out: str): ...\n",
    QUEUE + OUT + "def f(msg, out: func.Out[bytes]): ...\n",
    "app2 = func.FunctionApp()\n" + QUEUE + "def f(msg): ...\n",
]


async def test_both_agree_on_which_apps_can_be_indexed(tmp_path: Path) -> None:
    pytest.importorskip("azure_functions_runtime")
    ours: list[list[str]] = []
    for number, code in enumerate(APPS):
        app_dir = tmp_path / str(number)
        app_dir.mkdir()
        (app_dir / "function_app.py").write_text(HEAD + code)
        (app_dir / "cases.json").write_text("[]")
        try:
            with imported(app_dir) as module:
                ours.append([function.name for function in find(module)])
        except IndexingError:
            ours.append([])
    drives = [asyncio.to_thread(driven, tmp_path / str(number)) for number in range(len(APPS))]
    theirs = [outcome["indexed"] for outcome in await asyncio.gather(*drives)]
    assert ours == theirs
    assert ours.count(["f"]) == 2
