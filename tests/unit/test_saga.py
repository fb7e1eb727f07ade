"""Sagas: what is refused when one is defined, what follows from it, and how its functions run."""

import asyncio
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NewType, SupportsInt

import msgspec
import pytest

from sas import Call, HttpService, RefusedError, Saga
from sas.config import SettingError
from sas.domain.workflow import WorkflowError
from sas.ports import (
    AgentCall,
    AwaitCallback,
    Callback,
    CallbacksOffError,
    HeldError,
    StillRunning,
)
from sas.saga import SagaStep, business_of, sagas_of
from sas.saga.business import check_settings
from sas.saga.functions import fits

MINUTE = timedelta(minutes=1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CURRENT: ContextVar[str] = ContextVar("CURRENT", default="")


class Trip(msgspec.Struct):
    """An order."""

    who: str


class Other(msgspec.Struct):
    """Another order."""

    who: str


@dataclass
class Seat:
    """A result."""

    number: int


class Opaque:
    """A class that JSON cannot hold."""


def call_of(workflow: str = "trip", step: str = "fly", **members: Any) -> AgentCall:
    """Return a call as the engine makes it."""
    content: dict[str, Any] = {"order": {"who": "Ann"}, "results": {}, **members}
    return AgentCall(
        order_id="o-1", workflow=workflow, step=step, key="k-1", complete_by=NOW, **content
    )


def with_flight() -> tuple[Saga[Trip], SagaStep[Trip, [], Seat]]:
    trips = Saga("trip", Trip)

    @trips.step()
    async def fly(call: Call[Trip]) -> Seat:
        return Seat(len(call.order.who))

    return trips, fly


# What is refused. Each function makes one mistake.


def a_class() -> None:
    class Step:
        def __call__(self, call: Call[Trip]) -> None: ...

    Saga("trip", Trip).step()(Step())


def a_partial() -> None:
    async def fly(speed: int, call: Call[Trip]) -> None: ...

    Saga("trip", Trip).step()(functools.partial(fly, 3))


def a_star() -> None:
    async def fly(call: Call[Trip], *rest: int) -> None: ...

    Saga("trip", Trip).step()(fly)


def a_name_that_is_not_defined() -> None:
    async def fly(call: "Call[Nowhere]") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    Saga("trip", Trip).step()(fly)


def no_type_of_the_result() -> None:
    async def fly(call: Call[Trip]): ...  # type: ignore[no-untyped-def]

    Saga("trip", Trip).step()(fly)


def no_type_of_a_parameter() -> None:
    trips, fly = with_flight()

    async def pay(call: Call[Trip], seat) -> None: ...  # type: ignore[no-untyped-def]

    trips.step(after=fly)(pay)


def no_call() -> None:
    async def fly() -> None: ...

    Saga("trip", Trip).step()(fly)  # type: ignore[arg-type]


def a_call_without_its_order() -> None:
    async def fly(call: Call) -> None: ...  # type: ignore[type-arg]

    Saga("trip", Trip).step()(fly)


def a_result_that_json_cannot_hold() -> None:
    async def fly(call: Call[Trip]) -> Opaque: ...  # type: ignore[empty-body]

    Saga("trip", Trip).step()(fly)


def a_list_of_what_json_cannot_hold() -> None:
    async def fly(call: Call[Trip]) -> list[Opaque]: ...  # type: ignore[empty-body]

    Saga("trip", Trip).step()(fly)


def an_order_that_json_cannot_hold() -> None:
    Saga("trip", Opaque)


def a_name_after() -> None:
    Saga("trip", Trip).step(after=("fly",))  # type: ignore[arg-type]


def the_same_step_twice() -> None:
    trips, fly = with_flight()
    trips.step()(fly)


def the_same_name_twice() -> None:
    trips, _ = with_flight()

    async def fly(call: Call[Trip]) -> None: ...

    trips.step()(fly)
    business_of([trips])


def a_name_that_is_none() -> None:
    async def Fly(call: Call[Trip]) -> None: ...  # noqa: N802

    trips = Saga("trip", Trip)
    trips.step()(Fly)
    business_of([trips])


def an_option_of_the_function_at_the_second_place() -> None:
    _, fly = with_flight()
    Saga("trip", Trip, version=2).step(agent="air")(fly)


def an_alternative_that_cannot_be_undone() -> None:
    trips, fly = with_flight()

    async def cancel(call: Call[Trip]) -> None: ...

    async def ride(call: Call[Trip]) -> Seat: ...  # type: ignore[empty-body]

    fly.undo(cancel)
    fly.alternative(agent="rail")(ride)
    business_of([trips])


def time_for_an_undo_that_is_not_there() -> None:
    trips = Saga("trip", Trip)

    async def fly(call: Call[Trip]) -> None: ...

    trips.step(undo_time_allowed=MINUTE)(fly)
    business_of([trips])


def a_time_that_is_a_number() -> None:
    trips = Saga("trip", Trip)

    async def fly(call: Call[Trip]) -> None: ...

    trips.step(time_allowed=60)(fly)  # type: ignore[call-overload]
    business_of([trips])


def a_limit_out_of_bounds() -> None:
    trips = Saga("trip", Trip)

    async def fly(call: Call[Trip]) -> None: ...

    trips.step(limit=1001)(fly)
    business_of([trips])


def two_limits_of_one_agent() -> None:
    trips = Saga("trip", Trip)

    async def fly(call: Call[Trip]) -> None: ...

    async def land(call: Call[Trip]) -> None: ...

    trips.step(agent="air", limit=3)(fly)
    trips.step(agent="air", limit=4)(land)
    business_of([trips])


def another_function_in_version_2() -> None:
    first, _ = with_flight()
    second = Saga("trip", Trip, version=2)

    async def fly(call: Call[Trip]) -> Seat: ...  # type: ignore[empty-body]

    second.step()(fly)
    business_of([first, second])


def a_time_without_unit() -> None:
    @Saga("trip", Trip).step(time_allowed=5)  # type: ignore[call-overload, untyped-decorator]
    async def fly(call: Call[Trip]) -> None: ...


def a_name_with_a_blank() -> None:
    @Saga("trip", Trip).step(name="Bad Name")
    async def fly(call: Call[Trip]) -> None: ...


def a_limit_that_is_no_number() -> None:
    @Saga("trip", Trip).step(limit=True)
    async def fly(call: Call[Trip]) -> None: ...


def an_alternative_with_a_wrong_limit() -> None:
    _, fly = with_flight()

    @fly.alternative(agent="rail", limit=-1)
    async def ride(call: Call[Trip]) -> Seat: ...  # type: ignore[empty-body]


def an_order_that_is_no_object() -> None:
    Saga("trip", list[int])


def a_result_of_a_step_beside_it() -> None:
    trips = Saga("trip", Trip)
    trips.step()(shared)

    @trips.step()
    async def pay(call: Call[Trip]) -> int:
        return call.result(shared).number

    business_of([trips])


def a_module() -> None:
    business_of([SimpleNamespace()])  # type: ignore[list-item]


def a_version_twice() -> None:
    business_of([with_flight()[0], with_flight()[0]])


MISTAKES: dict[Callable[[], None], str] = {
    a_class: r"is not a function: a step is a function, written with def",
    a_partial: r"is not a function: a step is a function, written with def",
    a_star: r"a_star.<locals>.fly \(test_saga.py:\d+\): give it plain parameters, without \* and /",
    a_name_that_is_not_defined: r"fly \(.*\): its annotations cannot be read \(name 'Nowhere' ",
    no_type_of_the_result: r"fly \(.*\): give its result a type",
    no_type_of_a_parameter: r"pay \(.*\): give its parameter seat a type",
    no_call: r"fly \(.*\): its first parameter is the call: call: Call\[Order\]",
    a_call_without_its_order: r"fly \(.*\): its first parameter is the call: call: Call\[Order\]",
    a_result_that_json_cannot_hold: (
        r"fly \(.*\): a result of the type Opaque cannot be kept as JSON \(it has no members that "
        r"can be read\): return a msgspec.Struct, "
    ),
    a_list_of_what_json_cannot_hold: r"fly \(.*\): a result of the type list\[.*Opaque\] cannot",
    an_order_that_json_cannot_hold: r"saga 'trip': its orders cannot be read as Opaque \(it has ",
    a_name_after: r"saga 'trip': after='fly' is not a step: name functions that are steps, as in",
    the_same_step_twice: r"fly \(.*\) is a step of saga 'trip' already",
    the_same_name_twice: (
        r"twice.<locals>.fly \(.*\): with_flight.<locals>.fly \(.*\) is the step 'fly' of saga "
        r"'trip' already: give another name="
    ),
    a_name_that_is_none: r"workflow 'trip': step 'Fly' is not a name: use lower-case letters",
    an_option_of_the_function_at_the_second_place: (
        r"fly \(.*\): give agent in its lowest decorator, because it belongs to the function"
    ),
    an_alternative_that_cannot_be_undone: r"ride \(.*\) has no undo, and the other agents have one",
    time_for_an_undo_that_is_not_there: r"fly \(.*\) has undo_time_allowed and no undo",
    a_time_that_is_a_number: r"workflow 'trip' step 'fly': time_allowed=60: give a timedelta",
    a_limit_out_of_bounds: r"fly \(.*\): limit=1001: give a whole number from 1 to 1000",
    a_time_without_unit: r"fly \(.*\): workflow 'trip' step 'fly': time_allowed=5: give a",
    a_name_with_a_blank: r"fly \(.*\): workflow 'trip': .*'Bad Name'",
    a_limit_that_is_no_number: r"fly \(.*\): limit=True: give a whole number",
    an_alternative_with_a_wrong_limit: r"ride \(.*\): limit=-1: give a whole number from 1 to 1000",
    an_order_that_is_no_object: r"saga 'trip': its orders cannot be read as .* JSON object\)",
    a_result_of_a_step_beside_it: r"pay \(.*\) asks for the result of shared, which does not",
    two_limits_of_one_agent: (
        r"land \(.*\): limit=4, and another step of agent air has 3: give it once"
    ),
    another_function_in_version_2: (
        r"fly \(.*\): another version of saga 'trip' has another function for the step fly of "
        r'agent fly: give the new function agent="fly-2"'
    ),
    a_module: r"namespace\(\) is not a saga: give sagas, as in function_app\(claims\)",
    a_version_twice: r"workflow 'trip' version 1 is defined twice",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_in_a_definition_is_one_sentence(mistake: Callable[[], None]) -> None:
    with pytest.raises(WorkflowError, match=MISTAKES[mistake]) as caught:
        mistake()
    assert "\n" not in str(caught.value)


# What follows from a definition


def test_names_of_steps_and_agents_follow_from_the_functions() -> None:
    trips = Saga("trip", Trip)

    @trips.step()
    async def book_flight(call: Call[Trip]) -> None: ...

    @trips.step(name="sleep")
    async def book_room_(call: Call[Trip]) -> None: ...

    @trips.step(agent="air", limit=3, inline=True)
    async def _insure(call: Call[Trip]) -> None: ...

    steps = [(step.name, step.agent) for step in trips.workflow.steps]
    assert steps == [("book-flight", "book-flight"), ("sleep", "sleep"), ("insure", "air")]
    business = business_of([trips])
    assert (business.limits, list(business.inline)) == ({"air": 3}, ["air"])
    assert [step.after for step in trips.workflow.steps] == [(), (), ()]


def test_a_saga_is_undone_unless_it_says_otherwise_and_a_step_has_a_minute() -> None:
    workflow = with_flight()[0].workflow
    assert workflow.on_failure.value == "undo"
    assert workflow.steps[0].time_allowed == MINUTE
    assert workflow.steps[0].undo is None


def test_two_versions_share_steps_and_each_gives_them_its_own_times() -> None:
    first, fly = with_flight()

    @fly.undo
    async def cancel(call: Call[Trip]) -> None: ...

    second = Saga("trip", Trip, version=2)
    second.step(time_allowed=2 * MINUTE)(fly)

    @second.step(after=fly)
    @first.step(after=fly, undo_time_allowed=3 * MINUTE)
    async def pay(call: Call[Trip], seat: Seat) -> None: ...

    @pay.undo
    async def pay_back(call: Call[Trip]) -> None: ...

    one_minute, two_minutes = (saga.workflow.steps[0] for saga in (first, second))
    assert (one_minute.time_allowed, two_minutes.time_allowed) == (MINUTE, 2 * MINUTE)
    assert two_minutes.undo is not None
    assert two_minutes.undo.time_allowed == 2 * MINUTE
    business = business_of([first, second])
    assert [workflow.version for workflow in business.workflows] == [1, 2]
    assert sorted(business.agents) == ["fly", "pay"]


async def test_a_version_2_with_another_agent_has_another_function() -> None:
    first, _ = with_flight()
    second = Saga("trip", Trip, version=2)

    @second.step(agent="fly-2")
    async def fly(call: Call[Trip]) -> str:
        return "by balloon"

    agents = business_of([first, second]).agents
    assert await agents["fly"].do(call_of()) == {"number": 3}
    assert await agents["fly-2"].do(call_of()) == "by balloon"


def test_the_sagas_of_a_module_are_found() -> None:
    trips, fly = with_flight()
    module: Any = SimpleNamespace(trips=trips, fly=fly, number=3)
    assert sagas_of(module) == [trips]


def test_the_check_of_an_order_parses_it_first() -> None:
    def check(trip: Trip) -> None:
        if trip.who == "Bob":
            raise ValueError("Bob stays at home")

    trips = Saga("trip", Trip, check=check)
    trips.step()(with_flight()[1].do.run)
    check_order = business_of([trips]).checks["trip", 1]
    check_order(b'{"who": "Ann"}')
    with pytest.raises(ValueError, match="Bob stays at home"):
        check_order(b'{"who": "Bob"}')
    with pytest.raises(ValueError, match=r"Expected `str`, got `int` - at `\$.who`"):
        check_order(b'{"who": 3}')


def test_each_version_has_its_own_type_of_order() -> None:
    first, second = with_flight()[0], Saga("trip", Seat, version=2)

    @second.step(agent="fly-2")
    async def fly(call: Call[Seat]) -> None: ...

    sagas: tuple[Saga[Any], ...] = (first, second)
    for given_order in (sagas, sagas[::-1]):
        checks = business_of(given_order).checks
        assert checks["trip", 1](b'{"who": "Ann"}') == Trip("Ann")
        assert checks["trip", 2](b'{"number": 3}') == Seat(3)


def test_the_settings_of_services_and_callbacks_are_checked_before_the_app_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trips = Saga("trip", Trip)
    trips.service("AIR_URL")

    @trips.step()
    async def wait(call: Call[Trip]) -> None:
        call.wait_for_callback(MINUTE)

    monkeypatch.delenv("AIR_URL", raising=False)
    monkeypatch.delenv("SAS_CALLBACK_KEY", raising=False)
    with pytest.raises(SettingError, match="AIR_URL"):
        check_settings([trips])
    monkeypatch.setenv("AIR_URL", "https://air.example")
    with pytest.raises(
        SettingError,
        match=r"SAS_CALLBACK_KEY is missing, and .*wait \(.*\) asks.*\(sas docs settings\)",
    ):
        check_settings([trips])
    monkeypatch.setenv("SAS_CALLBACK_KEY", "k" * 32)
    monkeypatch.setenv("SAS_CALLBACK_URL", "https://app.example/api/callbacks")
    check_settings([trips])


# How functions run


async def test_a_function_gets_the_order_and_the_results_in_their_types() -> None:
    trips, fly = with_flight()
    arguments: list[Any] = []

    @trips.step(after=fly)
    async def pay(call: Call[Trip], seat: Seat) -> Seat:
        arguments.extend((call.order, seat, call.result(fly), call.key, call.complete_by))
        return Seat(seat.number + 1)

    agent = business_of([trips]).agents["pay"]
    result = await agent.do(call_of(step="pay", results={"fly": {"number": 7}}))
    assert result == {"number": 8}
    assert arguments == [Trip("Ann"), Seat(7), Seat(7), "k-1", NOW]


async def test_a_result_of_a_step_that_does_not_come_before_is_refused_by_name() -> None:
    trips, fly = with_flight()

    @trips.step()
    async def pay(call: Call[Trip]) -> Seat:
        return call.result(fly)

    with pytest.raises(LookupError, match="step pay asks for the result of fly, which does not"):
        await business_of([trips]).agents["pay"].do(call_of(step="pay"))


async def test_an_undo_gets_the_result_or_none_or_nothing_but_the_call() -> None:
    trips, fly = with_flight()
    arguments: list[Any] = []

    @fly.undo
    async def cancel(call: Call[Trip], seat: Seat | None) -> None:
        arguments.append(seat)

    @trips.step()
    async def sleep(call: Call[Trip]) -> Seat:
        return Seat(1)

    @sleep.undo
    async def leave(call: Call[Trip]) -> None:
        arguments.append(call.order.who)

    @trips.step()
    async def mail(call: Call[Trip]) -> None: ...

    agents = business_of([trips]).agents
    await agents["fly"].undo(call_of(own_result={"number": 7}))
    await agents["fly"].undo(call_of())
    await agents["sleep"].undo(call_of(step="sleep", own_result={"number": 7}))
    assert await agents["mail"].undo(call_of(step="mail")) is None
    assert arguments == [Seat(7), None, "Ann"]


async def test_a_function_waits_and_no_except_of_its_own_stops_that() -> None:
    trips = Saga("trip", Trip)

    @trips.step()
    async def fly(call: Call[Trip]) -> str:
        try:
            call.later(MINUTE, "boards")
        except Exception:  # noqa: BLE001  as an adopter may write
            return "caught"

    @fly.undo
    def cancel(call: Call[Trip]) -> None:
        call.later(2 * MINUTE)

    @trips.step()
    async def approve(call: Call[Trip]) -> str:
        assert call.callback(MINUTE) == "https://app.example/token"
        call.wait_for_callback(MINUTE, "waits for Ann")

    agents = business_of([trips]).agents
    assert await agents["fly"].do(call_of()) == StillRunning(MINUTE, "boards")
    assert await agents["fly"].undo(call_of()) == StillRunning(2 * MINUTE)
    callback = Callback(token="token", url="https://app.example/token", expires=NOW)
    call = call_of(step="approve", callbacks=lambda _within: callback)
    assert await agents["approve"].do(call) == AwaitCallback(MINUTE, "waits for Ann")
    with pytest.raises(CallbacksOffError, match="SAS_CALLBACK_KEY"):
        await agents["approve"].do(call_of(step="approve"))
    without_url = Callback(token="token", url=None, expires=NOW)
    with pytest.raises(CallbacksOffError, match="SAS_CALLBACK_URL"):
        await agents["approve"].do(call_of(step="approve", callbacks=lambda _within: without_url))


async def test_a_function_without_async_runs_in_a_thread_and_keeps_the_context() -> None:
    trips = Saga("trip", Trip)
    barrier = threading.Barrier(2, timeout=30)

    @trips.step()
    def fly(call: Call[Trip]) -> str:
        barrier.wait()  # two calls run at once
        assert threading.current_thread() is not threading.main_thread()
        return CURRENT.get()

    @fly.undo
    def cancel(call: Call[Trip], where: str | None) -> None:
        raise RefusedError("gone", "the flight has left")

    agent = business_of([trips]).agents["fly"]
    CURRENT.set("a trace")
    results: list[str] = await asyncio.gather(agent.do(call_of()), agent.do(call_of()))
    assert results == ["a trace", "a trace"]
    with pytest.raises(RefusedError, match="the flight has left"):
        await agent.undo(call_of())
    await agent.close()


async def test_what_does_not_fit_its_type_any_more_is_held_and_the_member_named() -> None:
    trips, fly = with_flight()

    @fly.undo
    async def cancel(call: Call[Trip], seat: Seat | None) -> None: ...

    @trips.step(after=fly)
    async def pay(call: Call[Trip], seat: Seat) -> str:
        return "paid"

    agents = business_of([trips]).agents
    order = "the order does not fit Trip: Expected `str`, got `int` - at `$.who`"
    result = "the result of fly does not fit Seat: Object missing required field `number`"
    missing = "the result of fly is missing (was the step skipped without --input?): undo the order"
    for agent, action, call, why in (
        ("fly", "do", call_of(order={"who": 3}), order),
        ("fly", "undo", call_of(order={"who": 3}), order),
        ("fly", "undo", call_of(own_result={}), result),
        ("pay", "do", call_of(step="pay", results={"fly": {}}), result),
        ("pay", "do", call_of(step="pay", results={"fly": None}), missing),
    ):
        with pytest.raises(HeldError) as caught:
            await getattr(agents[agent], action)(call)
        assert str(caught.value).startswith(why)


async def test_a_result_of_another_type_is_held_where_it_is_made() -> None:
    trips = Saga("trip", Trip)

    @trips.step()
    async def fly(call: Call[Trip]) -> Seat:
        return {"number": "A"}  # type: ignore[return-value]

    @trips.step()
    async def sleep(call: Call[Trip]) -> Any:
        return Opaque()

    agents = business_of([trips]).agents
    with pytest.raises(HeldError, match=r"what fly returned is no Seat: Expected `int`, got `str`"):
        await agents["fly"].do(call_of())
    with pytest.raises(HeldError, match="what sleep returned is no Any: Encoding objects of type"):
        await agents["sleep"].do(call_of(step="sleep"))


async def test_closing_an_agent_closes_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    trips, _ = with_flight()
    monkeypatch.setenv("AIR_URL", "https://air.example")
    service = trips.service("AIR_URL")
    closed: list[object] = []

    async def close() -> None:
        closed.append(service)

    monkeypatch.setattr(service, "close", close)
    await business_of([trips]).agents["fly"].close()
    assert closed == [service]


async def test_versions_share_a_step_that_has_other_steps_before_it() -> None:
    first, second = Saga("trip", Trip), Saga("trip", Trip, version=2)

    @second.step()
    @first.step()
    async def fly(call: Call[Trip]) -> Seat:
        return Seat(1)

    @second.step(after=fly)
    async def audit(call: Call[Trip], seat: Seat) -> Seat:
        return Seat(seat.number + 1)

    @second.step(after=audit)
    @first.step(after=fly)
    async def pay(call: Call[Trip], seat: Seat) -> int:
        return seat.number

    agent = business_of([first, second]).agents["pay"]
    results = {"fly": {"number": 1}}
    assert await agent.do(call_of(step="pay", results=results)) == 1
    assert await agent.do(call_of(step="pay", results=results | {"audit": {"number": 2}})) == 2
    agent = business_of([second, first]).agents["pay"]  # `fly` was skipped, and has no result
    assert await agent.do(call_of(step="pay", results={"audit": {"number": 2}})) == 2


def test_an_app_without_the_first_version_needs_the_services_that_its_steps_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AIR_OF_TESTS_URL", raising=False)
    second = Saga("trip", Trip, version=2)
    second.step()(shared)
    assert business_of([second]).settings == ["AIR_OF_TESTS_URL"]
    with pytest.raises(SettingError, match="AIR_OF_TESTS_URL"):
        check_settings([second])


def test_a_callback_that_a_helper_asks_for_needs_its_settings_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SAS_CALLBACK_KEY", raising=False)
    trips = Saga("trip", Trip)

    @trips.step()
    async def ask(call: Call[Trip]) -> None:
        wait_outside(call)

    with pytest.raises(SettingError, match=r"SAS_CALLBACK_KEY is missing, and .*ask"):
        check_settings([trips])


def wait_outside(call: Call[Trip]) -> None:
    call.callback(MINUTE)
    call.wait_for_callback(MINUTE)


SHARED_SAGA = Saga("shared", Trip)
AIR = SHARED_SAGA.service("AIR_OF_TESTS_URL")


@SHARED_SAGA.step()
async def shared(call: Call[Trip]) -> Seat:
    return await AIR.post(call, "/seats", call.order, Seat)


Number = NewType("Number", str)


@pytest.mark.parametrize(
    ("parameter_type", "value_type", "expected"),
    [
        (str, Annotated[str, msgspec.Meta(min_length=1)], True),
        (str, Number, True),
        (str, Literal["a", "b"], True),
        (float, int, True),
        (Sequence[Seat], list[Seat], True),
        (Mapping[str, int], dict[str, int], True),
        (object, list[Seat], True),
        (Seat | None, Seat, True),
        (Seat, Any, True),
        (SupportsInt, int, True),
        (Seat, Seat | None, False),
        (Seat, Trip, False),
        (int, Literal["a"], False),
        (list[Seat], list[Trip], False),
        (list[Seat], dict[str, Seat], False),
    ],
)
def test_a_parameter_takes_what_a_checker_lets_it_take(
    parameter_type: Any, value_type: Any, *, expected: bool
) -> None:
    assert fits(parameter_type, value_type) is expected


async def test_a_wait_for_another_time_than_that_of_the_address_is_a_mistake() -> None:
    trips = Saga("trip", Trip)

    @trips.step()
    async def ask(call: Call[Trip]) -> None:
        call.callback(MINUTE)
        call.wait_for_callback(2 * MINUTE)

    until = NOW + MINUTE
    call = replace(call_of(step="ask"), callbacks=lambda _: Callback("t", "https://here/t", until))
    with pytest.raises(HeldError, match=r"waits 0:02:00 for a callback, and made no address"):
        await business_of([trips]).agents["ask"].do(call)


async def cancelled_inside() -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def exits() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("mistake", [cancelled_inside, exits])
async def test_what_would_end_our_own_task_is_a_mistake_like_any_other(mistake: Any) -> None:
    trips = Saga("trip", Trip)

    @trips.step()
    async def fly(call: Call[Trip]) -> None:
        await mistake()

    with pytest.raises(Exception, match="left the function") as caught:
        await business_of([trips]).agents["fly"].do(call_of(step="fly"))
    assert mistake.__name__ in [entry.name for entry in caught.traceback]


async def test_a_step_may_go_on_later_from_a_group_of_tasks() -> None:
    trips = Saga("trip", Trip)

    @trips.step()
    async def fly(call: Call[Trip]) -> None:
        async with asyncio.TaskGroup():
            call.later(MINUTE, "in a group")

    assert await business_of([trips]).agents["fly"].do(call_of(step="fly")) == StillRunning(
        MINUTE, "in a group"
    )


async def test_a_wrapper_without_async_around_an_async_function_is_awaited() -> None:
    trips = Saga("trip", Trip)

    async def inner() -> Seat:
        return Seat(1)

    @trips.step()
    def fly(call: Call[Trip]) -> Seat:
        return inner()  # type: ignore[return-value]

    assert await business_of([trips]).agents["fly"].do(call_of(step="fly")) == {"number": 1}


@pytest.mark.parametrize(
    ("doing", "post", "delete"), [(True, "k-1", "k-1"), (False, "k-1/undo", "k-1")]
)
async def test_a_post_of_an_undo_has_a_key_of_its_own_and_a_delete_that_of_the_step(
    monkeypatch: pytest.MonkeyPatch, *, doing: bool, post: str, delete: str
) -> None:
    keys: dict[str, str] = {}

    async def answer(_self: HttpService, method: str, _path: str, *, key: str, body: Any) -> Any:
        keys[method] = key
        return body

    async def both(call: Call[Trip]) -> None:
        await AIR.post(call, "/refunds", call.order)
        await AIR.delete(call, "/seats")

    monkeypatch.setattr(HttpService, "call", answer)
    trips = Saga("trip", Trip)
    step = trips.step(name="fly")(both)
    step.undo(both)
    agent = business_of([trips]).agents["fly"]
    await (agent.do if doing else agent.undo)(call_of())
    assert keys == {"POST": post, "DELETE": delete}


def test_a_saga_without_a_step_or_with_the_name_of_the_smoke_test_is_refused() -> None:
    with pytest.raises(WorkflowError, match="saga 'trip' has no step"):
        business_of([Saga("trip", Trip)])
    smoke = Saga("smoke", Trip)

    @smoke.step()
    async def fly(call: Call[Trip]) -> None: ...

    with pytest.raises(WorkflowError, match="'smoke' has the name of the test after a deployment"):
        business_of([smoke])
