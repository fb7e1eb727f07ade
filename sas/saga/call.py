"""What a step's function gets: the order, the earlier results, the key, and the ways to wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from sas.ports import AwaitCallback, CallbacksOffError, HeldError, Later, StillRunning
from sas.saga.content import Kept, decoded

if TYPE_CHECKING:
    from sas.ports import AgentCall

O_co = TypeVar("O_co", covariant=True)
R = TypeVar("R")


class LaterError(BaseException):
    """The step has not ended yet. No ``except Exception`` of an adopter's function catches it."""

    def __init__(self, later: Later) -> None:
        super().__init__(later)
        self.later = later


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[O_co]):
    """One attempt at a step, or at its undo.

    ``order`` is the order's content. ``key`` is the idempotency key: the same for the step, its
    undo and every retry. ``undoing`` says whether this is the undo. ``complete_by`` is when the
    system stops waiting for this attempt.
    """

    order_id: str
    workflow: str
    step: str
    key: str
    complete_by: datetime
    order: O_co = field(repr=False)
    results: Mapping[str, Any] = field(repr=False)
    callbacks: Callable[[timedelta], str] = field(repr=False, compare=False)
    undoing: bool = False
    _asked: list[timedelta] = field(default_factory=list, repr=False, compare=False)

    def key_for(self, method: str) -> str:
        """Return the key of a request to a service.

        A DELETE of an undo has the key of the step: it takes back what has that key. Another
        request of an undo, such as a POST of a refund, is an effect of its own.
        """
        return f"{self.key}/undo" if self.undoing and method != "DELETE" else self.key

    def result(self, step: Kept[R]) -> R:
        """Return the result of a step that comes before this one, directly or through others.

        Raises:
            LookupError: that step does not come before this one.
            HeldError: the result does not fit its type any more. The step waits, and people are
                told why.
        """
        if step.name not in self.results:
            raise LookupError(
                f"step {self.step} asks for the result of {step.name}, which does not come before "
                f"it: name it in `after`"
            )
        return result_of(step, self.results[step.name])

    def callback(self, within: timedelta) -> str:
        """Return an address. Whoever POSTs to it ends this step ``within`` this time.

        Pass it to the outside system, then ``wait_for_callback``. The address contains a token,
        which is its last part, so treat it as a secret.

        Raises:
            CallbacksOffError: SAS_CALLBACK_KEY or SAS_CALLBACK_URL is not set.
            ValueError: ``within`` is not above 0, or is over 30 days.
        """
        url = self.callbacks(within)
        self._asked.append(within)
        return url

    def wait_for_callback(self, within: timedelta, note: str = "") -> NoReturn:
        """End this attempt. A callback ends the step ``within`` this time.

        Its result must have the step's return type. Without a callback in that time the step fails
        for good: nobody is asked again. ``note`` tells people what it waits for.

        Raises:
            ValueError: ``within`` is not above 0, or is over 30 days.
        """
        if within not in self._asked:
            raise HeldError(
                f"step {self.step} waits {within} for a callback, and made no address for that "
                "time: call.callback(within) first"
            )
        raise LaterError(AwaitCallback(within, note))

    def later(self, check_after: timedelta, note: str = "") -> NoReturn:
        """End this attempt. The step is called again after this time, with the same key.

        No message and no function waits meanwhile. ``note`` tells people about the progress.

        Raises:
            ValueError: ``check_after`` is not above 0, or is over 30 days.
        """
        raise LaterError(StillRunning(check_after, note))


def typed(plain: AgentCall, shape: Any, *, undoing: bool = False) -> Call[Any]:
    """Return the call that a function gets; its order is converted to ``shape``.

    Raises:
        HeldError: the order does not fit its type any more.
    """

    def callback(within: timedelta) -> str:
        url = plain.callback(within).url
        if url is None:
            raise CallbacksOffError("SAS_CALLBACK_URL", "the address of the endpoint /callbacks")
        return url

    return Call(
        order_id=plain.order_id,
        workflow=plain.workflow,
        step=plain.step,
        key=plain.key,
        complete_by=plain.complete_by,
        order=decoded(plain.order, shape, "the order"),
        results=plain.results,
        callbacks=callback,
        undoing=undoing,
    )


def result_of(step: Kept[R], result: object) -> R:
    """Return a step's stored result in the step's type.

    Raises:
        HeldError: it does not fit.
    """
    try:
        value: R = decoded(result, step.shape, f"the result of {step.name}")
    except HeldError as error:
        if result is None:
            raise HeldError(
                f"the result of {step.name} is missing (was the step skipped without --input?): "
                "undo the order, or do this step by hand and skip it with its result"
            ) from error
        raise
    return value
