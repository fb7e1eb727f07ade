"""Microsoft's worker core (`azure-functions-runtime`) without a host; also run as a program.

    python -I -S devstack/tests/worker_core.py APP_DIR [SITE_PACKAGES]

The worker core speaks protobuf; plain objects that keep what they were made with are enough. As a
program this file needs the standard library alone, and what it imports comes from SITE_PACKAGES,
then from APP_DIR, in the order that Microsoft's proxy worker gives them.

The program reads one JSON line with the app settings, or null to keep its environment. It indexes
the app and prints what came of it. Then each line is an invocation, and its answer is a line with
the same id; they run at the same time, as in the proxy worker. At the end of the input it prints
what the worker would have forwarded: every record of every logger from INFO on.
"""

import asyncio
import contextlib
import importlib
import json
import logging
import os
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Index = dict[str, Any]
"""What a worker says of its app: its functions with their bindings, or the error."""


class Proto(SimpleNamespace):
    """Stands for any protobuf message: keeps what it was made with."""

    Success, Failure = "Success", "Failure"
    undefined, out, inout = None, 1, 2
    data: Any = None

    def WhichOneof(self, which: str) -> str | None:  # noqa: N802  # protobuf's own name
        return "data" if which == "rpc_data" else next(iter(vars(self)), None)


class _Protos:
    def __getattr__(self, name: str) -> Any:
        return Proto


class Forwarded(logging.Handler):
    """Stands for the worker's handler of the root logger, which sends records to the host."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.name, self.format(record)))
        sys.stderr.write(" ".join(self.records[-1]) + "\n")


# ---------------------------------------------------------------- datums, for another process


def packed(datum: Any) -> Any:
    """Return a datum of the host as JSON."""
    value = datum.value
    if datum.type == "http":
        value = {name: _packed_part(part) for name, part in value.items()}
    elif datum.type.startswith("collection_"):
        [[attribute, items]] = vars(value).items()
        encode = bytes.hex if attribute == "bytes" else lambda item: item
        value = {attribute: [encode(item) for item in items]}
    elif datum.type == "bytes":
        value = value.hex()
    return {"type": datum.type, "value": value}


def _packed_part(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: packed(datum) for name, datum in part.items()}
    return packed(part)


def _typed_data(packed_datum: dict[str, Any]) -> Any:
    kind, value = packed_datum["type"], packed_datum["value"]
    if kind == "http":
        parts = {
            name: {k: v["value"] for k, v in part.items()} if "type" not in part else part["value"]
            for name, part in value.items()
        }
        body = Proto(bytes=bytes.fromhex(value["body"]["value"]))
        return Proto(http=SimpleNamespace(**parts | {"body": body}))
    if kind == "bytes":
        return Proto(bytes=bytes.fromhex(value))
    if kind == "collection_bytes":
        value = {"bytes": [bytes.fromhex(text) for text in value["bytes"]]}
    if kind.startswith("collection_"):
        return Proto(**{kind: SimpleNamespace(**value)})
    return Proto(**{kind: value})


def _plain(data: Any) -> Any:
    """Return an output of the worker core as JSON."""
    if data is None:
        return None
    [[kind, value]] = vars(data).items()
    if kind == "http":
        return [value.status_code, value.headers, value.body.bytes.decode()]
    return [kind, value]


# ---------------------------------------------------------------- the requests of a host


async def start(
    app_dir: Path, settings: dict[str, str] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Import the worker core and index the app; return the core and what came of it.

    With ``settings`` it happens as on Flex Consumption, where a worker that waits in a pool is
    given the environment and the app. Without, as when a worker starts again.
    """
    core = importlib.import_module("azure_functions_runtime.handle_event")
    about = SimpleNamespace(
        capabilities={}, function_app_directory=str(app_dir), environment_variables=settings
    )
    request = SimpleNamespace(
        request=SimpleNamespace(
            worker_init_request=about, function_environment_reload_request=about
        ),
        properties={"host": "127.0.0.1", "protos": _Protos()},
    )
    if settings is None:
        answer = await core.worker_init_request(request)
    else:
        answer = await core.function_environment_reload_request(request)
    if answer.result.status != Proto.Success:
        return core, {"indexed": {}, "error": answer.result.exception.message}
    listed = await core.functions_metadata_request(SimpleNamespace())
    functions = listed.function_metadata_results or []
    return core, {
        "indexed": {f.name: [json.loads(text) for text in f.raw_bindings] for f in functions},
        "capabilities": dict(answer.capabilities),
        "core": importlib.import_module("azure_functions_runtime.version").VERSION,
    }


async def invoke(core: Any, work: dict[str, Any]) -> dict[str, Any]:
    """Invoke a function with a packed datum; return its status, its error and its outputs."""
    function_id = str(uuid.uuid5(uuid.NAMESPACE_OID, work["function"]))
    [parameter] = core._functions.get_function(function_id).input_types  # the trigger's
    request = SimpleNamespace(
        invocation_id=str(uuid.uuid4()),
        function_id=function_id,
        input_data=[Proto(name=parameter, data=_typed_data(work["datum"]))],
        trigger_metadata={k: _typed_data(v) for k, v in work["metadata"].items()},
        trace_context=SimpleNamespace(trace_parent="", trace_state="", attributes={}),
        retry_context=SimpleNamespace(retry_count=0, max_retry_count=0, exception=None),
    )
    wrapped = SimpleNamespace(request=SimpleNamespace(invocation_request=request), properties={})
    answer = await core.invocation_request(wrapped)
    if answer.result.status != Proto.Success:
        return {"status": "Failure", "error": str(answer.result.exception.message)}
    outputs = {output.name: _plain(output.data) for output in answer.output_data}
    return {"status": "Success", "outputs": outputs, "returned": _plain(answer.return_value)}


# ---------------------------------------------------------------- the program


async def _serve(app_dir: Path) -> None:
    loop = asyncio.get_running_loop()
    read = sys.stdin.readline
    forwarded = Forwarded()
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(forwarded)
    core, index = await start(app_dir, json.loads(await loop.run_in_executor(None, read)))
    _say(index)
    forwarded.records.clear()
    running: set[asyncio.Task[None]] = set()
    while line := await loop.run_in_executor(None, read):
        task = asyncio.create_task(_answer(core, json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    with contextlib.suppress(Exception):  # the worker is killed; here nothing is left open
        await sys.modules["function_app"].app.application().close()
    _say({"records": forwarded.records})


async def _answer(core: Any, work: dict[str, Any]) -> None:
    _say({"id": work["id"], **await invoke(core, work)})


def _say(answer: object) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    # 1. packages of the app, 2. (in Azure) those of the image, 3. the app itself
    sys.path[:0] = sys.argv[2:]
    sys.path.append(sys.argv[1])
    asyncio.run(_serve(Path(sys.argv[1])))
