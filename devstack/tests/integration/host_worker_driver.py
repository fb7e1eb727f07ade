"""Drives `azure-functions-runtime`, Microsoft's worker core, without a host; run as a program.

    python -m devstack.tests.integration.host_worker_driver APP_DIR

Indexes the app, invokes it with `APP_DIR/cases.json` and prints what came of it as JSON. The
worker core speaks protobuf; plain objects that keep what they were made with are enough.
"""

import asyncio
import importlib
import json
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class _Proto(SimpleNamespace):
    """Stands for any protobuf message: keeps what it was made with."""

    Success, Failure = "Success", "Failure"
    undefined, out, inout = None, 1, 2
    data: Any = None

    def WhichOneof(self, which: str) -> str | None:  # noqa: N802  # protobuf's own name
        return "data" if which == "rpc_data" else next(iter(vars(self)), None)


class _Protos:
    def __getattr__(self, name: str) -> Any:
        return _Proto


def _typed_data(packed_datum: dict[str, Any]) -> Any:
    kind, value = packed_datum["type"], packed_datum["value"]
    if kind == "http":
        parts = {
            name: {k: v["value"] for k, v in part.items()} if "type" not in part else part["value"]
            for name, part in value.items()
        }
        body = _Proto(bytes=bytes.fromhex(value["body"]["value"]))
        return _Proto(http=SimpleNamespace(**parts | {"body": body}))
    if kind == "bytes":
        return _Proto(bytes=bytes.fromhex(value))
    if kind == "collection_bytes":
        value = {"bytes": [bytes.fromhex(text) for text in value["bytes"]]}
    if kind.startswith("collection_"):
        return _Proto(**{kind: SimpleNamespace(**value)})
    return _Proto(**{kind: value})


def _given(data: Any) -> Any:
    if data is None:
        return None
    [[kind, value]] = vars(data).items()
    if kind == "http":
        return [value.status_code, value.headers, value.body.bytes.decode()]
    return [kind, value]


async def _invoke(core: Any, module: Any, work: dict[str, Any]) -> list[Any]:
    module.seen.clear()
    name = work["function"]
    [trigger] = [p for p in ("msg", "t", "req") if p in module.__dict__["PARAMETERS"][name]]
    pb = _Proto(name=trigger, data=_typed_data(work["datum"]))
    request = SimpleNamespace(
        invocation_id=str(uuid.uuid4()),
        function_id=str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
        input_data=[pb],
        trigger_metadata={k: _typed_data(v) for k, v in work["metadata"].items()},
        trace_context=SimpleNamespace(trace_parent="", trace_state="", attributes={}),
        retry_context=SimpleNamespace(retry_count=0, max_retry_count=0, exception=None),
    )
    wrapped = SimpleNamespace(request=SimpleNamespace(invocation_request=request), properties={})
    answer = await core.invocation_request(wrapped)
    if answer.result.status != "Success":
        return ["failed", list(module.seen), bool(answer.result.exception.message)]
    outputs = {output.name: _given(output.data) for output in answer.output_data}
    return ["ok", list(module.seen), outputs, _given(answer.return_value)]


async def _drive(app_dir: Path) -> dict[str, Any]:
    core = importlib.import_module("azure_functions_runtime.handle_event")
    sys.path.insert(0, str(app_dir))
    init = SimpleNamespace(capabilities={}, function_app_directory=str(app_dir))
    properties = {"host": "127.0.0.1", "protos": _Protos()}
    request = SimpleNamespace(worker_init_request=init)
    answer = await core.worker_init_request(SimpleNamespace(request=request, properties=properties))
    if answer.result.status != "Success":
        return {"indexed": []}
    index = await core.functions_metadata_request(SimpleNamespace())
    names = [function.name for function in index.function_metadata_results]
    module = sys.modules["function_app"]
    functions = {
        n: core._functions.get_function(str(uuid.uuid5(uuid.NAMESPACE_OID, n))) for n in names
    }
    module.__dict__["PARAMETERS"] = {n: list(info.input_types) for n, info in functions.items()}
    cases = json.loads((app_dir / "cases.json").read_text())
    return {"indexed": names, "results": [await _invoke(core, module, case) for case in cases]}


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asyncio.run(_drive(Path(sys.argv[1])))) + "\n")
