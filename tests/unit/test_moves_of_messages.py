"""How the messages of a move are received, page by page, and which of them are let go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from azure.servicebus.exceptions import MessageLockLostError

from sas.adapters.queues import OperatorServiceBus
from sas.ports import MessageMove


class DeadLetters:
    """A receiver of these pages of sequence numbers; the locks of ``lost`` end too early."""

    def __init__(self, *pages: list[int], lost: int = 0) -> None:
        self.pages = list(pages)
        self.lost = lost
        self.completed: list[int] = []
        self.abandoned: list[int] = []

    async def peek_messages(self, count: int) -> list[Any]:
        return []

    async def receive_messages(self, count: int, max_wait_time: float) -> list[Any]:
        return [SimpleNamespace(sequence_number=number) for number in self.pages.pop(0)]

    async def complete_message(self, message: Any) -> None:
        if message.sequence_number == self.lost:
            raise MessageLockLostError
        self.completed.append(message.sequence_number)

    async def abandon_message(self, message: Any) -> None:
        self.abandoned.append(message.sequence_number)

    async def close(self) -> None:
        return None

    async def moved(self, *moves: set[int]) -> list[bool]:
        client: Any = SimpleNamespace(get_queue_sender=None, get_queue_receiver=lambda _: self)
        bus = OperatorServiceBus(client)
        wanted_moves = [MessageMove(message=None, sequences=frozenset(move)) for move in moves]
        return [removed async for removed in bus.move("q/dlq", wanted_moves)]


async def test_a_move_whose_copies_lie_pages_apart_is_made_and_all_others_are_given_back() -> None:
    queue = DeadLetters([1, 2], [60, 61], [80, 81], [82])
    assert await queue.moved({1, 60}, {80}) == [True, True]
    assert (queue.completed, queue.abandoned) == ([1, 60, 80], [2, 61, 81])


async def test_a_copy_whose_lock_is_lost_leaves_no_other_copy_behind() -> None:
    queue = DeadLetters([1, 2, 3], lost=1)
    assert await queue.moved({1, 2}, {3}) == [False, True]
    assert queue.completed == [2, 3]


async def test_a_message_that_is_gone_is_looked_for_up_to_its_place_and_once_around() -> None:
    for pages in ([[1], [4], [5]], [[1], [2, 1], [5]], [[1], [], [5]]):
        queue = DeadLetters(*pages)
        assert await queue.moved({3}) == []
        assert queue.pages == [[5]]
