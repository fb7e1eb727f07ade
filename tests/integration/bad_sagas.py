"""Sagas with one mistake each, in a function each. ``test_saga_typing`` reads the comments.

- ``# error: WHY``: both type checkers report an error at this line, and at no other line.
- ``# import: "SENTENCE"``: what the function raises, or ``business_of`` of its sagas after it. An
  empty sentence: only a type checker sees the mistake.
"""

import msgspec

from sas import Call, OnFailure, Saga


class Trip(msgspec.Struct, frozen=True):
    """An order."""

    who: str


class Other(msgspec.Struct, frozen=True):
    """Another order."""

    who: str


class Seat(msgspec.Struct, frozen=True):
    """A result."""

    number: str


class Room(msgspec.Struct, frozen=True):
    """Another result."""

    beds: int


trips = Saga("trip", Trip)


@trips.step()
async def fly(call: Call[Trip]) -> Seat:
    return Seat("3A")


@trips.step()
async def sleep(call: Call[Trip]) -> Room:
    return Room(2)


def results_in_the_wrong_order() -> None:
    # import: "its parameter room is Room, and the result of fly is Seat"
    @trips.step(after=(fly, sleep))  # error: wrong order
    async def pay(call: Call[Trip], room: Room, seat: Seat) -> str:
        return seat.number


def a_result_that_is_missing() -> None:
    # import: "takes 1 results, and it comes after fly, sleep"
    @trips.step(after=(fly, sleep))  # error: one is missing
    async def pay(call: Call[Trip], seat: Seat) -> str:
        return seat.number


def a_result_too_many() -> None:
    # import: "takes 2 results, and it comes after fly"
    @trips.step(after=fly)  # error: one too many
    async def pay(call: Call[Trip], seat: Seat, room: Room) -> str:
        return seat.number


def a_result_of_a_step_that_comes_after_none() -> None:
    # import: "takes 1 results, and it comes after no step"
    @trips.step()  # error: none comes before
    async def pay(call: Call[Trip], seat: Seat) -> str:
        return seat.number


def a_wrong_result_of_six() -> None:
    # import: "its parameter last is Room, and the result of fly is Seat"
    @trips.step(after=(fly, sleep, fly, sleep, fly, fly))  # error: the last one
    async def pay(call: Call[Trip], a: Seat, b: Room, c: Seat, d: Room, e: Seat, last: Room) -> str:
        return a.number


def a_member_that_the_result_lacks() -> None:
    # import: ""
    @trips.step(after=fly)
    async def check_in(call: Call[Trip], seat: Seat) -> str:
        return seat.row  # error: no such member


def a_member_that_the_order_lacks() -> None:
    # import: ""
    @trips.step()
    async def insure(call: Call[Trip]) -> str:
        return call.order.name  # error: no such member


def a_member_that_an_earlier_result_lacks() -> None:
    # import: "asks for the result of fly, which does not come before"
    @trips.step(after=sleep)
    async def tip(call: Call[Trip], room: Room) -> str:
        return call.result(fly).beds  # error: no such member


def an_earlier_result_of_another_type() -> None:
    # import: "asks for the result of fly, which does not come before"
    @trips.step(after=sleep)
    async def toast(call: Call[Trip], room: Room) -> Room:
        return call.result(fly)  # error: a seat is no room


def a_step_of_another_order() -> None:
    # import: "its call is Call[Other], and the orders of saga 'trip' are Trip"
    @trips.step()  # error: Call[Other]
    async def pay(call: Call[Other]) -> str:
        return call.order.who


def a_predecessor_of_another_saga() -> None:
    # import: "comes after fly, which is not a step of saga 'other'"
    others = Saga("other", Other)

    @others.step(after=fly)  # error: of another saga
    async def pay(call: Call[Other], seat: Seat) -> str:
        return seat.number


def an_undo_of_another_result() -> None:
    # import: "an undo takes the call, and the result if it needs it: Seat | None"
    @trips.step()
    async def pay(call: Call[Trip]) -> Seat:
        return Seat("1")

    @pay.undo  # error: Room
    async def pay_back(call: Call[Trip], room: Room | None) -> None:
        return None


def an_undo_that_takes_no_none() -> None:
    # import: "an undo takes the call, and the result if it needs it: Seat | None"
    @trips.step()
    async def pay(call: Call[Trip]) -> Seat:
        return Seat("1")

    @pay.undo  # error: without None
    async def pay_back(call: Call[Trip], seat: Seat) -> None:
        return None


def an_undo_of_another_order() -> None:
    # import: "its call is Call[Other], and the one of an_undo_of_another_order.<locals>.pay"
    @trips.step()
    async def pay(call: Call[Trip]) -> Seat:
        return Seat("1")

    @pay.undo  # error: Call[Other]
    async def pay_back(call: Call[Other]) -> None:
        return None


def an_alternative_with_another_result() -> None:
    # import: "an alternative takes and returns what"
    @trips.step()
    async def pay(call: Call[Trip]) -> Seat:
        return Seat("1")

    @pay.alternative(agent="bank")  # error: another result
    async def pay_by_bank(call: Call[Trip]) -> Room:
        return Room(1)


def an_alternative_with_other_parameters() -> None:
    # import: "an alternative takes and returns what"
    @trips.step(after=fly)
    async def pay(call: Call[Trip], seat: Seat) -> Seat:
        return seat

    @pay.alternative(agent="bank")  # error: one is missing
    async def pay_by_bank(call: Call[Trip]) -> Seat:
        return Seat("1")


def an_option_with_a_typo() -> None:
    # import: "has no option time_alowed"
    @trips.step(time_alowed=3)  # error: a typo
    async def pay(call: Call[Trip]) -> str:
        return "paid"


def an_option_of_another_type() -> None:
    # import: "limit='3': give a whole number"
    @trips.step(limit="3")  # error: a text
    async def pay(call: Call[Trip]) -> str:
        return "paid"


def a_decorator_without_its_parentheses() -> None:
    # import: "takes 1 positional argument but 2 were given"
    @trips.step  # error: it takes options
    async def pay(call: Call[Trip]) -> str:
        return "paid"


def an_option_of_the_saga_with_a_typo() -> None:
    # import: "unexpected keyword argument 'notify_step'"
    Saga("other", Other, on_failure=OnFailure.UNDO, notify_step=True)  # error: a typo


def a_step_that_is_another_sagas_with_another_order() -> None:
    # import: "its call is Call[Trip], and the orders of saga 'other' are Other"
    others = Saga("other", Other)

    @others.step()  # error: its order is Trip
    @trips.step()
    async def pay(call: Call[Trip]) -> str:
        return "paid"


def a_shared_step_whose_predecessor_differs() -> None:
    # import: "takes 1 results, and it comes after no step"
    newer = Saga("trip", Trip, version=2)

    @newer.step()  # error: it needs a seat
    @trips.step(after=fly)
    async def pay(call: Call[Trip], seat: Seat) -> str:
        return seat.number


def an_undo_that_is_there_twice() -> None:
    # import: "has an undo already"
    @trips.step()
    async def pay(call: Call[Trip]) -> str:
        return "paid"

    @pay.undo
    async def pay_back(call: Call[Trip]) -> None:
        return None

    @pay.undo
    async def pay_again(call: Call[Trip]) -> None:
        return None


def a_check_of_another_order() -> None:
    # import: ""
    def check(order: Other) -> None:
        return None

    Saga("third", Trip, check=check)  # error: it takes Other
