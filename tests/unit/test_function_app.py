"""``sas.functions``: thin triggers, bound to the queues that the settings name."""

from __future__ import annotations

import ast
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Self

import azure.functions as func
import pytest

from sas.domain.queues import Queues
from sas.engine.delivery import Delivery
from sas.features.callbacks.endpoint import Answer
from tests.indexed_functions import ROOT, bindings, functions, module
from tests.sample import AGENTS

TREE = ast.parse((ROOT / "sas" / "functions.py").read_text(encoding="utf-8"))
LANES = {
    "submission": "%SAS_QUEUE_ORDERS%",
    "scheduler": "%SAS_QUEUE_SCHEDULER%",
    **{f"agent_{name.replace('-', '_')}": f"%SAS_QUEUE_AGENT_PREFIX%{name}" for name in AGENTS},
}
AGENT = f"agent_{AGENTS[0].replace('-', '_')}"
URGENT = {f"{name}_urgent": f"{queue}-urgent" for name, queue in LANES.items()}
QUEUES = {
    **LANES,
    **URGENT,
    "deadletters": "%SAS_QUEUE_DEAD_LETTERS%",
    "deadletters_end": "%SAS_QUEUE_DEAD_LETTERS%/$DeadLetterQueue",
}
FUNCTIONS = functions()
NAMES = Queues(orders="in", scheduler="wakes", agent_prefix="to-")
"""Names that differ from the defaults."""


def test_the_app_has_these_functions_and_no_others() -> None:
    assert set(FUNCTIONS) == {*QUEUES, "callback", "supervisor", "purge"}


def test_a_function_is_bound_to_its_queue_by_setting_and_gets_bytes() -> None:
    for name, queue in QUEUES.items():
        bound = bindings()[name]
        assert bound["type"] == "serviceBusTrigger"
        assert bound["queueName"] == queue
        assert bound["connection"] == "ServiceBus"
        assert bound["dataType"] == "BINARY"


@pytest.mark.parametrize("name", ["supervisor", "purge"])
def test_a_timer_runs_on_the_schedule_of_the_settings(name: str) -> None:
    bound = bindings()[name]
    assert bound["type"] == "timerTrigger"
    assert bound["schedule"] == f"%SAS_{name.upper()}_SCHEDULE%"
    assert bound["useMonitor"] is False


def test_the_module_decides_nothing() -> None:
    """It has no branch and no error handler. Its loops go over applications and agents."""
    refused = (ast.If, ast.IfExp, ast.Try, ast.TryStar, ast.While, ast.Match, ast.With)
    nodes = [node for node in ast.walk(TREE) if isinstance(node, refused)]
    assert [f"line {getattr(node, 'lineno', 0)}" for node in nodes] == []
    loops = [n for n in ast.walk(TREE) if isinstance(n, ast.For | ast.AsyncFor | ast.comprehension)]
    iterables = []
    for loop in loops:
        assert isinstance(loop, ast.For)
        iterables.append(ast.unparse(loop.iter))
        assert len(loop.body) == 1
    assert set(iterables) == {"read_applications()", "agents"}
    for node in ast.walk(TREE):
        if isinstance(node, ast.Lambda):  # it names a method of an actor
            assert isinstance(node.body, ast.Attribute), ast.unparse(node)


def test_every_function_decodes_calls_an_actor_and_returns() -> None:
    for node in ast.walk(TREE):
        if isinstance(node, ast.AsyncFunctionDef):
            statements = _statements(node)
            assert len(statements) <= 3, node.name
            awaits = [
                ast.unparse(each.value) for each in ast.walk(node) if isinstance(each, ast.Await)
            ]
            (called,) = (call for call in awaits if call != "made(self.application)")
            assert "application" in called, called
            assert isinstance(statements[-1], ast.Return if node.name == "callback" else ast.Expr)


def test_callbacks_are_posted_and_their_token_is_the_authentication() -> None:
    bound = bindings()["callback"]
    assert bound["type"] == "httpTrigger"
    assert (bound["route"], bound["methods"]) == ("callbacks/{token?}", ["POST"])
    assert bound["authLevel"] == "ANONYMOUS"


def _statements(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    body = node.body
    is_docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return body[1:] if is_docstring else body


class Seen:
    """An application that remembers what its actors were called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.context = SimpleNamespace(queues=NAMES)
        self.submitter = SimpleNamespace(handle=self._as("submission"))
        self.scheduler = SimpleNamespace(handle=self._as("scheduler"))
        self.agents = {
            name: SimpleNamespace(handle=self._as(f"agent_{name.replace('-', '_')}"))
            for name in AGENTS
        }
        self.dead_letters = SimpleNamespace(handle=self._as("deadletters"))
        self.supervisor = SimpleNamespace(sweep=self._as("supervisor"))
        self.purger = SimpleNamespace(run=self._as("purge"))
        self.callbacks = SimpleNamespace(answer=self._answer)

    @property
    def receiver(self) -> Self:
        return self

    async def receive(self, handler: Any, delivery: Any) -> None:
        await handler(delivery)

    async def run(self, timer: Any) -> None:
        await timer()

    def _as(self, name: str) -> Any:
        async def called(*arguments: Any) -> None:
            self.calls.append((name, arguments))

        return called

    async def _answer(self, *arguments: Any) -> Answer:
        self.calls.append(("callback", arguments))
        return Answer(
            status=202,
            code="accepted",
            message="it is taken",
            headers={"Cache-Control": "no-store"},
        )


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Seen:
    application = Seen()
    monkeypatch.setattr(module().app, "application", lambda: application)
    return application


def message(**members: Any) -> func.ServiceBusMessage:
    """Return a message as the worker makes it."""
    body = members.pop("body", b"\xff{}")
    properties = members.pop("application_properties", {})
    # The concrete class is the package's own.
    message_class: Any = func.servicebus.ServiceBusMessage
    return message_class(  # type: ignore[no-any-return]
        body=body,
        trigger_metadata=None,
        application_properties=properties,
        user_properties=properties,
        **{"message_id": "m-1", **members},
    )


def named(queue: str) -> str:
    """Return what a queue's setting stands for in ``NAMES``."""
    queue_names = {
        "%SAS_QUEUE_ORDERS%": NAMES.orders,
        "%SAS_QUEUE_SCHEDULER%": NAMES.scheduler,
        "%SAS_QUEUE_DEAD_LETTERS%": NAMES.dead_letters,
        "%SAS_QUEUE_AGENT_PREFIX%": NAMES.agent_prefix,
    }
    queue = queue.removesuffix("/$DeadLetterQueue")  # a copy goes to the queue itself
    for setting, name in queue_names.items():
        queue = queue.replace(setting, name)
    return queue


async def test_a_message_goes_to_its_actor_with_all_properties_of_its_queue(recorder: Seen) -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    properties = {"traceparent": "00-1"}
    for name, queue in QUEUES.items():
        recorder.calls.clear()
        await FUNCTIONS[name].get_user_function()(
            message(
                application_properties=properties,
                delivery_count=3,
                enqueued_time_utc=at,
                dead_letter_source="orders",
            )
        )
        expected = Delivery(
            body=b"\xff{}",
            message_id="m-1",
            queue=named(queue),
            urgent=name.endswith("_urgent"),
            properties=properties,
            count=3,
            enqueued_at=at,
            source_queue="orders",
        )
        actor = name.removesuffix("_urgent").removesuffix("_end")
        assert recorder.calls == [(actor, (expected,))]


@pytest.mark.parametrize("message_id", [None, "", "x" * 129, "half \ud800"])
async def test_a_message_without_an_id_that_can_be_one_gets_a_digest_of_its_body(
    recorder: Seen, message_id: str | None
) -> None:
    for name in QUEUES:
        recorder.calls.clear()
        for body in (b"{}", b"{}", b"[]"):
            await FUNCTIONS[name].get_user_function()(message(message_id=message_id, body=body))
        first, again, other = (delivery.message_id for _, (delivery,) in recorder.calls)
        assert first == again != other
        assert first.startswith("body/")


@pytest.mark.parametrize(("path", "token"), [({"token": "t.1"}, "t.1"), ({}, None)])
async def test_a_callback_goes_with_its_token_and_the_answer_goes_back(
    recorder: Seen, path: dict[str, str], token: str | None
) -> None:
    request = func.HttpRequest(
        "POST",
        "https://app.example/api/callbacks",
        headers={"authorization": "Bearer t.2"},
        route_params=path,
        body=b"\xff{}",
    )
    response = await FUNCTIONS["callback"].get_user_function()(request)
    assert recorder.calls == [("callback", (token, "Bearer t.2", b"\xff{}"))]
    assert (response.status_code, response.mimetype) == (202, "application/json")
    assert json.loads(response.get_body()) == {"code": "accepted", "message": "it is taken"}
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("name", ["supervisor", "purge"])
async def test_a_timer_calls_its_actor(recorder: Seen, name: str) -> None:
    await FUNCTIONS[name].get_user_function()(None)
    assert recorder.calls == [(name, ())]


async def test_a_message_is_held_for_minutes_if_its_process_cannot_make_its_actors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A package was missing, for example. Five deliveries within a second would reject it."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    def application() -> None:
        raise ModuleNotFoundError("No module named 'aiohttp'")

    monkeypatch.setattr(module().app, "application", application)
    monkeypatch.setattr("sas.bootstrap.asyncio.sleep", sleep)
    with pytest.raises(ModuleNotFoundError):
        await FUNCTIONS["submission"].get_user_function()(message())
    assert pauses == [120.0]


async def test_what_an_actor_raises_reaches_the_host(
    recorder: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise ConnectionError("down")

    monkeypatch.setattr(recorder.submitter, "handle", fails)
    with pytest.raises(ConnectionError):
        await FUNCTIONS["submission"].get_user_function()(message())
