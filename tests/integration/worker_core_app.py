"""This app under Microsoft's worker core, without a host; run as a program.

    python -m tests.integration.worker_core_app APP_DIR

Reads invocations from standard input, one JSON line each, and answers each with a line. At the end
of the input it prints what the worker would have forwarded: every record of every logger from INFO
on, and the capabilities that the worker announced.
"""

import asyncio
import contextlib
import importlib
import json
import logging
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from devstack.tests.integration.host_worker_driver import _Proto, _Protos, _typed_data


class Forwarded(logging.Handler):
    """Stands for the worker's handler of the root logger, which sends records to the host."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.name, self.format(record)))


async def invoke(core: Any, work: dict[str, Any]) -> str:
    request = SimpleNamespace(
        invocation_id=str(uuid.uuid4()),
        function_id=str(uuid.uuid5(uuid.NAMESPACE_OID, work["function"])),
        input_data=[_Proto(name="message", data=_typed_data(work["datum"]))],
        trigger_metadata={k: _typed_data(v) for k, v in work["metadata"].items()},
        trace_context=SimpleNamespace(trace_parent="", trace_state="", attributes={}),
        retry_context=SimpleNamespace(retry_count=0, max_retry_count=0, exception=None),
    )
    wrapped = SimpleNamespace(request=SimpleNamespace(invocation_request=request), properties={})
    answer = await core.invocation_request(wrapped)
    return str(answer.result.status)


async def run(app_dir: Path) -> None:
    forwarded = Forwarded()
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(forwarded)
    core = importlib.import_module("azure_functions_runtime.handle_event")
    sys.path.insert(0, str(app_dir))
    init = SimpleNamespace(capabilities={}, function_app_directory=str(app_dir))
    properties = {"host": "127.0.0.1", "protos": _Protos()}
    request = SimpleNamespace(worker_init_request=init)
    answer = await core.worker_init_request(SimpleNamespace(request=request, properties=properties))
    listed = await core.functions_metadata_request(SimpleNamespace())
    say({"indexed": [function.name for function in listed.function_metadata_results]})
    forwarded.records.clear()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        say({"status": await invoke(core, json.loads(line))})
    application = sys.modules["function_app"].app.application
    with contextlib.suppress(Exception):  # the worker is killed; here nothing is left open
        await application().close()
    say({"capabilities": dict(answer.capabilities), "records": forwarded.records})


def say(answer: object) -> None:
    sys.__stdout__.write(json.dumps(answer) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
