"""Call a function: convert its input, run it, convert its output.

Async functions run on the event loop, sync functions on threads. The setting
PYTHON_THREADPOOL_THREAD_COUNT is the number of threads; the default is the number of CPUs + 4. The
rules for the output are those of Microsoft's worker: a returned value without a `$return` binding
fails the invocation, and an output that was never set is not sent.
"""

import asyncio
import contextvars
import json
import logging
import os
import re
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import azure.functions as func
from azure.functions.meta import Datum

from devstack.functions.indexing import GENERIC, BoundParameter, IndexedFunction, converter_for
from devstack.functions.metadata import MessageMetadata
from devstack.functions.settings import InvocationError, Settings, SettingsError
from devstack.inputs import whole_number

_log = logging.getLogger("devstack.functions")
_THREADS = "PYTHON_THREADPOOL_THREAD_COUNT"
_THREADS_MAX = 1000
_CANCEL_S = 1.0
_GENERIC_KINDS: dict[type, str] = {
    str: "string",
    bytes: "bytes",
    bytearray: "bytes",
    dict: "dict",
    list: "list",
}

CURRENT: contextvars.ContextVar[tuple[str, str] | None] = contextvars.ContextVar(
    "devstack_invocation", default=None
)
"""(invocation id, function name) of the code that runs now; None outside an invocation."""

_NO_PROPERTIES = Datum("{}", "json")
_NO_RETRY = SimpleNamespace(retry_count=0, max_retry_count=0, exception=None)
_THREAD_LOCAL = threading.local()
_TRACE = re.compile(r"00-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")


@dataclass(kw_only=True)
class _Context(func.Context):
    """`azure.functions.Context` of one invocation."""

    invocation_id: str = ""
    function_name: str = ""
    function_directory: str = ""
    trace_context: Any = None
    retry_context: Any = None
    thread_local_storage: Any = _THREAD_LOCAL


class _Out(func.Out[Any]):
    """The argument of an output parameter."""

    _value: Any = None

    def set(self, val: Any) -> None:
        self._value = val

    def get(self) -> Any:
        return self._value


@dataclass(frozen=True)
class Result:
    """The output of a successful invocation: a datum for each output, and one for `$return`."""

    outputs: Mapping[str, Datum]
    returned: Datum | None = None


@dataclass
class Counts:
    """The number of invocations of a function."""

    running: int = 0
    succeeded: int = 0
    failed: int = 0


class Invoker:
    """Calls the functions of one host process.

    If one function exceeds functionTimeout, all functions that run fail, because in Azure the host
    then ends the worker process with everything in it.
    """

    def __init__(self, settings: Settings, *, timeout_s: float | None) -> None:
        """`timeout_s` is host.json's functionTimeout; None means no limit."""
        self._timeout_s = timeout_s
        self.timed_out = asyncio.Event()
        self._worker_end: asyncio.Future[str] | None = None
        self._new_threads = partial(
            ThreadPoolExecutor, _thread_count(settings), thread_name_prefix="function"
        )
        self._threads = self._new_threads()
        self.counts: dict[str, Counts] = {}

    async def invoke(
        self, function: IndexedFunction, datum: Datum, metadata: Mapping[str, Datum], *, reason: str
    ) -> Result:
        """Call `function` with its trigger's datum; raise its errors. `reason` is for the log."""
        invocation_id = str(uuid.uuid4())
        counts = self.counts.setdefault(function.name, Counts())
        token = CURRENT.set((invocation_id, function.name))
        start = time.perf_counter()
        counts.running += 1
        _log.info("Executing 'Functions.%s' (%s)", function.name, reason)
        try:
            result = await self._call(function, datum, metadata, invocation_id=invocation_id)
        except BaseException as error:
            counts.failed += 1
            text = "Executed 'Functions.%s' (Failed, %.0f ms): %s: %s"
            _log.error(
                text,
                function.name,
                _ms_since(start),
                type(error).__name__,
                error,
                exc_info=error if isinstance(error, Exception) else None,
            )
            raise
        else:
            counts.succeeded += 1
            text = "Executed 'Functions.%s' (Succeeded, %.0f ms)"
            _log.info(text, function.name, _ms_since(start))
            return result
        finally:
            counts.running -= 1
            CURRENT.reset(token)

    async def _call(
        self,
        function: IndexedFunction,
        datum: Datum,
        metadata: Mapping[str, Datum],
        *,
        invocation_id: str,
    ) -> Result:
        signature = function.signature
        arguments: dict[str, Any] = {
            name: _decode(parameter, datum, metadata)
            for name, parameter in signature.inputs.items()
        }
        outs = {name: _Out() for name in signature.outputs}
        arguments |= outs
        if signature.wants_context:
            arguments["context"] = _Context(
                invocation_id=invocation_id,
                function_name=function.name,
                function_directory=str(function.directory),
                trace_context=_trace(datum, metadata),
                retry_context=_NO_RETRY,
            )
        return _result(function, await self._in_worker(function, arguments), outs)

    async def _in_worker(self, function: IndexedFunction, arguments: dict[str, Any]) -> Any:
        """Run the code until it ends, or until any function exceeds functionTimeout.

        All calls that run now share the future `_worker_end`. The first call that exceeds its time
        sets a sentence as the result of this future. Then each of these calls raises an
        InvocationError with the sentence. Later calls share a new future.
        """
        loop = asyncio.get_running_loop()
        worker_end = self._worker_end = self._worker_end or loop.create_future()
        work = asyncio.ensure_future(self._run(function, arguments))
        try:
            await asyncio.wait(
                {work, worker_end}, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
            if not worker_end.done():
                limit = f"functionTimeout of host.json ({self._timeout_s:g} s)"
                worker_end.set_result(
                    f"Function {function.name} exceeded the {limit}: its worker ends."
                )
                self._worker_end = None
                self.timed_out.set()
                self.close()  # a sync function keeps its thread, and later calls get new ones
                self._threads = self._new_threads()
            raise InvocationError(worker_end.result())
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work}, timeout=_CANCEL_S)

    async def _run(self, function: IndexedFunction, arguments: dict[str, Any]) -> Any:
        """Run the code; if it raises SystemExit or CancelledError, raise InvocationError instead.

        Otherwise a SystemExit could end the event loop that all functions share, and a
        CancelledError could leave a message unsettled.
        """
        try:
            if function.signature.is_async:
                return await function.code(**arguments)
            context, loop = contextvars.copy_context(), asyncio.get_running_loop()
            run = partial(_run_on_thread, function.code, arguments)
            return await loop.run_in_executor(self._threads, context.run, run)
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, Exception | GeneratorExit) or (
                task is not None and task.cancelling()
            ):
                raise
            raise InvocationError(
                f"Function {function.name} ended with {type(error).__name__}"
                f"{f' ({error})' if str(error) else ''}: return, or raise an Exception."
            ) from error

    def close(self) -> None:
        """Release the threads; sync functions that still run are not interrupted."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _run_on_thread(code: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    _THREAD_LOCAL.invocation_id = (CURRENT.get() or (None,))[0]
    try:
        return code(**arguments)
    finally:
        _THREAD_LOCAL.invocation_id = None


def _trace(datum: Datum, metadata: Mapping[str, Datum]) -> SimpleNamespace:
    """The trace context of an invocation: a new span in the trace of the message or request."""
    if datum.type == "http":
        carrier = {name: header.value for name, header in datum.value["headers"].items()}
    else:
        properties = metadata.get("ApplicationProperties", _NO_PROPERTIES)
        carrier = json.loads(properties.value) if properties.type == "json" else {}
    parent = _TRACE.fullmatch(str(carrier.get("traceparent") or carrier.get("Diagnostic-Id")))
    trace_id, flags = parent.groups() if parent else (secrets.token_hex(16), "01")
    state = str(carrier.get("tracestate", "")) if parent else ""
    trace_parent = f"00-{trace_id}-{secrets.token_hex(8)}-{flags}"
    return SimpleNamespace(trace_parent=trace_parent, trace_state=state, attributes={})


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1000


def _decode(parameter: BoundParameter, datum: Datum, metadata: Mapping[str, Datum]) -> Any:
    """Convert a datum to an argument with the azure-functions converter of its binding."""
    if parameter.converter == GENERIC:
        return datum.value
    if isinstance(metadata, MessageMetadata):
        return metadata.decoded(datum.value)
    try:
        return converter_for(parameter.converter).decode(datum, trigger_metadata=metadata)
    except NotImplementedError as error:
        raise InvocationError(
            f"A {parameter.converter} cannot be made of {datum.type} data: {error}."
        ) from error


def _encode(parameter: BoundParameter, value: Any, place: str) -> Datum | None:
    """Convert an output value to a datum; None when there is nothing to send."""
    if parameter.converter == GENERIC:
        if value is None:
            return None
        if type(value) not in _GENERIC_KINDS:
            raise InvocationError(f"{place}: a {type(value).__name__} cannot be sent.")
        return Datum(value, _GENERIC_KINDS[type(value)])
    try:
        datum: Datum | None = converter_for(parameter.converter).encode(
            value, expected_type=parameter.annotation
        )
    except NotImplementedError as error:
        raise InvocationError(
            f"{place}: a {parameter.converter} binding does not take a {type(value).__name__}; "
            "give it str or bytes."
        ) from error
    return datum


def _result(function: IndexedFunction, value: Any, outs: Mapping[str, _Out]) -> Result:
    signature = function.signature
    encoded = {
        name: _encode(signature.outputs[name], out.get(), f"The output {name}")
        for name, out in outs.items()
        if out.get() is not None
    }
    outputs = {name: datum for name, datum in encoded.items() if datum is not None}
    if signature.returns is None and value is not None:
        kind = type(value).__name__
        text = f"Function {function.name} returned a {kind} but has no $return binding"
        raise InvocationError(f"{text}: return None.")
    if signature.returns is None or (value is None and signature.returns.converter != "http"):
        return Result(outputs)
    return Result(outputs, _encode(signature.returns, value, "The return value"))


def _thread_count(settings: Settings) -> int:
    text = settings.get(_THREADS)
    if text is None:
        return (os.cpu_count() or 1) + 4
    number = whole_number(text)
    if number is None or not 1 <= number <= _THREADS_MAX:
        raise SettingsError(f"The setting {_THREADS} must be a number from 1 to {_THREADS_MAX}.")
    return number
