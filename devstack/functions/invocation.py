"""One invocation: convert what came, call the function, convert what it gave.

Async functions run on the loop, sync ones on threads (PYTHON_THREADPOOL_THREAD_COUNT, or
CPUs + 4). The rules after the call are the worker's: a value returned without a `$return`
binding fails the invocation, and an output that was never set is not sent.
"""

import asyncio
import contextvars
import logging
import os
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import azure.functions as func
from azure.functions.meta import Datum

from devstack.functions.context import INVOCATION, THREAD_LOCAL, InvocationContext
from devstack.functions.errors import InvocationError, SettingsError
from devstack.functions.indexing import IndexedFunction
from devstack.functions.settings import Settings
from devstack.functions.signatures import GENERIC, BoundParameter, converter_for
from devstack.numbers import whole_number

_log = logging.getLogger("devstack.functions")
_THREADS = "PYTHON_THREADPOOL_THREAD_COUNT"
_GENERIC_KINDS: dict[type, str] = {
    str: "string",
    bytes: "bytes",
    bytearray: "bytes",
    dict: "dict",
    list: "list",
}


class Out(func.Out[Any]):
    """What an output parameter is given: `set` it, or leave it."""

    def __init__(self) -> None:
        self._value: Any = None

    def set(self, val: Any) -> None:
        """Keep the value to be sent when the function has returned."""
        self._value = val

    def get(self) -> Any:
        """What was set last."""
        return self._value


@dataclass(frozen=True)
class Result:
    """What came of an invocation that succeeded: datums by output name, and `$return`."""

    outputs: Mapping[str, Datum]
    returned: Datum | None = None


@dataclass
class Counts:
    """How often a function was called, for the log and for tests."""

    running: int = 0
    succeeded: int = 0
    failed: int = 0


class Invoker:
    """Calls functions; one for a host process."""

    def __init__(self, settings: Settings, *, timeout_s: float | None) -> None:
        """`timeout_s` is host.json's functionTimeout, None for none."""
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_thread_count(settings), thread_name_prefix="function")
        self.counts: dict[str, Counts] = {}

    async def invoke(
        self, function: IndexedFunction, datum: Datum, metadata: Mapping[str, Datum], *, reason: str
    ) -> Result:
        """Call `function` with its trigger's datum; `reason` is for the log.

        Raises:
            Exception: whatever the function raised, or an InvocationError.
        """
        invocation_id = str(uuid.uuid4())
        counts = self.counts.setdefault(function.name, Counts())
        token = INVOCATION.set((invocation_id, function.name))
        began = time.perf_counter()
        counts.running += 1
        _log.info("Executing 'Functions.%s' (%s)", function.name, reason)
        try:
            result = await self._call(function, datum, metadata, invocation_id)
        except BaseException as error:
            counts.failed += 1
            _executed(function.name, "Failed", began, error)
            raise
        else:
            counts.succeeded += 1
            _executed(function.name, "Succeeded", began, None)
            return result
        finally:
            counts.running -= 1
            INVOCATION.reset(token)

    async def _call(
        self,
        function: IndexedFunction,
        datum: Datum,
        metadata: Mapping[str, Datum],
        invocation_id: str,
    ) -> Result:
        signature = function.signature
        arguments: dict[str, Any] = {
            name: decode(parameter, datum, metadata) for name, parameter in signature.inputs.items()
        }
        outs = {name: Out() for name in signature.outputs}
        arguments |= outs
        if signature.wants_context:
            arguments["context"] = InvocationContext(
                function.name, function.directory, invocation_id
            )
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                value = await self._run(function, arguments, invocation_id)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise InvocationError(
                f"Function {function.name} ran longer than host.json's functionTimeout "
                f"({self._timeout_s:g} s) and was given up."
            ) from error
        return _result(function, value, outs)

    async def _run(
        self, function: IndexedFunction, arguments: dict[str, Any], invocation_id: str
    ) -> Any:
        """Run the code; an exit or a cancellation of its own fails it like any exception.

        Otherwise one function would end the loop that all of them share, or its message would
        never be settled.
        """
        try:
            if function.signature.is_async:
                return await function.code(**arguments)
            return await self._on_thread(function, arguments, invocation_id)
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

    async def _on_thread(
        self, function: IndexedFunction, arguments: dict[str, Any], invocation_id: str
    ) -> Any:
        def run() -> Any:
            THREAD_LOCAL.invocation_id = invocation_id
            try:
                return function.code(**arguments)
            finally:
                THREAD_LOCAL.invocation_id = None

        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, run)

    def close(self) -> None:
        """Give the threads back; sync functions still running are left to end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def decode(parameter: BoundParameter, datum: Datum, metadata: Mapping[str, Datum]) -> Any:
    """Make a function's argument of a datum, by the azure-functions converter of its binding.

    Raises:
        InvocationError: the converter does not take such a datum.
    """
    if parameter.converter == GENERIC:
        return datum.value
    try:
        return converter_for(parameter.converter).decode(datum, trigger_metadata=metadata)
    except NotImplementedError as error:
        raise InvocationError(
            f"A {parameter.converter} cannot be made of {datum.type} data: {error}."
        ) from error


def encode(parameter: BoundParameter, value: Any, *, where: str) -> Datum | None:
    """Make a datum of what a function gave; None when there is nothing to send.

    Raises:
        InvocationError: the binding does not take a value of that type.
    """
    if parameter.converter == GENERIC:
        if value is None:
            return None
        kinds: dict[type, str] = {
            str: "string",
            bytes: "bytes",
            bytearray: "bytes",
            dict: "dict",
            list: "list",
        }
        kind = kinds.get(type(value))
        if kind is None:
            raise InvocationError(f"{where}: a {type(value).__name__} cannot be sent.")
        return Datum(value, kind)
    try:
        found: Datum | None = converter_for(parameter.converter).encode(
            value, expected_type=parameter.annotation
        )
    except NotImplementedError as error:
        raise InvocationError(
            f"{where}: a {parameter.converter} binding does not take a {type(value).__name__}; "
            "give it str or bytes."
        ) from error
    return found


def _result(function: IndexedFunction, value: Any, outs: Mapping[str, Out]) -> Result:
    signature = function.signature
    outputs: dict[str, Datum] = {}
    for name, out in outs.items():
        if out.get() is not None:
            datum = encode(signature.outputs[name], out.get(), where=f"The output {name}")
            if datum is not None:
                outputs[name] = datum
    if signature.returns is None:
        if value is not None:
            raise InvocationError(
                f"Function {function.name} returned a {type(value).__name__} but has no $return "
                "binding: return None."
            )
        return Result(outputs)
    if value is None and signature.returns.converter != "http":
        return Result(outputs)
    return Result(outputs, encode(signature.returns, value, where="The return value"))


def _executed(name: str, outcome: str, began: float, error: BaseException | None) -> None:
    duration_ms = (time.perf_counter() - began) * 1000
    if error is None:
        _log.info("Executed 'Functions.%s' (%s, %.0f ms)", name, outcome, duration_ms)
        return
    _log.error(
        "Executed 'Functions.%s' (%s, %.0f ms): %s: %s",
        name,
        outcome,
        duration_ms,
        type(error).__name__,
        error,
        exc_info=error if isinstance(error, Exception) else None,
    )


def _thread_count(settings: Settings) -> int:
    text = settings.get(_THREADS)
    if text is None:
        return (os.cpu_count() or 1) + 4
    number = whole_number(text)
    if number is None or not 1 <= number <= 1000:
        raise SettingsError(f"The setting {_THREADS} must be a number between 1 and 1000.")
    return number
