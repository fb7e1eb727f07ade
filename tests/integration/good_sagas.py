"""Sagas with every option, as an adopter writes them. Both type checkers accept each line.

``test_saga_typing`` runs the checkers, and makes a business of the sagas.
"""

from dataclasses import dataclass
from datetime import timedelta

import msgspec

from sas import Backoff, Call, ExtendedWait, OnFailure, RefusedError, Saga

MINUTE = timedelta(minutes=1)


class Trip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An order."""

    who: str
    nights: int


class Seat(msgspec.Struct, frozen=True):
    """A result."""

    number: str


class Window(Seat, frozen=True):
    """A result that is also a ``Seat``."""

    side: str


@dataclass(frozen=True)
class Room:
    """A result that is a dataclass."""

    number: int


def check_nights(trip: Trip) -> None:
    """Refuse an order."""
    if trip.nights > 30:
        raise ValueError("at most 30 nights")


trips = Saga(
    "trip",
    Trip,
    version=2,
    check=check_nights,
    on_failure=OnFailure.HOLD,
    notify_steps=True,
    deadline=timedelta(days=3),
    pickup=timedelta(seconds=10),
    alert_after=MINUTE,
)
older = Saga("trip", Trip)
air = trips.service("AIR_URL", attempt_seconds=3.0)


@older.step(time_allowed=2 * MINUTE)
@trips.step(
    name="flight",
    agent="air",
    limit=10,
    inline=True,
    time_allowed=MINUTE,
    undo_time_allowed=2 * MINUTE,
    drain_time=MINUTE,
    failures_max=3,
    backoff=Backoff(MINUTE),
    extended_wait=ExtendedWait(MINUTE, times=3),
)
async def book_flight(call: Call[Trip]) -> Window:
    """A step that comes first, of two versions."""
    return await air.post(call, "/seats", {"who": call.order.who}, Window)


@book_flight.undo
async def cancel_flight(call: Call[Trip], seat: Window | None) -> None:
    """An undo that takes the result."""
    if seat is not None:
        await air.delete(call, f"/seats/{seat.number}")


@book_flight.alternative(agent="rail", limit=5, inline=True)
async def book_train(call: Call[Trip]) -> Window:
    """Another agent of the step."""
    return Window(call.key, "left")


@book_train.undo
async def cancel_train(call: Call[Trip]) -> None:
    """An undo without the result."""
    await air.delete(call, f"/trains/{call.key}")


@trips.step(after=())
def book_room(call: Call[Trip]) -> Room:
    """A step in a thread."""
    if call.order.nights == 13:
        raise RefusedError("no-room", "there is no such room")
    return Room(call.order.nights)


@book_room.undo
def cancel_room(call: Call[Trip], room: Room | None) -> None:
    """An undo in a thread."""
    print(call.key, room)  # noqa: T201


@trips.step(after=book_flight)
async def seat_is_known(call: Call[Trip], seat: Seat) -> None:
    """A step without a result; its parameter takes more than the step returns."""
    call.later(MINUTE, "is not ready")


@trips.step(after=(book_room,))
async def room_key(call: Call[Trip], room: Room) -> dict[str, int]:
    """A step after one, in a tuple."""
    return {"key": room.number}


@trips.step(after=(book_flight, book_room))
async def pay(call: Call[Trip], seat: Window, room: Room) -> int | None:
    """A step after two, that waits for a callback."""
    await air.post(call, "/bills", {"answer_to": call.callback(MINUTE)})
    call.wait_for_callback(MINUTE, "waits for the bank")


@trips.step(after=(seat_is_known, room_key, pay))
async def three(call: Call[Trip], seat: None, key: dict[str, int], paid: int | None) -> list[str]:
    """A step after three, that asks for earlier results."""
    window: Window = call.result(book_flight)
    room: Room = call.result(book_room)
    return [window.side, str(room.number)]


@trips.step(after=(book_flight, book_room, room_key, pay))
async def four(
    call: Call[Trip], seat: Window, room: Room, key: dict[str, int], paid: int | None
) -> str:
    """A step after four."""
    return seat.side


@trips.step(after=(book_flight, book_room, room_key, pay, three))
async def five(
    call: Call[Trip],
    seat: Window,
    room: Room,
    key: dict[str, int],
    paid: int | None,
    words: list[str],
) -> str:
    """A step after five."""
    return words[0]


@trips.step(after=(book_flight, book_room, room_key, pay, three, four))
async def six(
    call: Call[Trip],
    seat: Window,
    room: Room,
    key: dict[str, int],
    paid: int | None,
    words: list[str],
    side: str,
) -> str:
    """A step after six."""
    return side
