"""What the running task is about: its actor, and order, step and epoch once they are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Facts = dict[str, str | int]
_NAMES = ("order_id", "step", "epoch", "workflow")
_actor: ContextVar[str | None] = ContextVar("sas_actor", default=None)
_facts: ContextVar[Facts | None] = ContextVar("sas_facts", default=None)


@contextmanager
def scope(given: Mapping[str, str | int], actor: str | None = None) -> Iterator[None]:
    """Add to what is known, for as long as the block (and the tasks it starts) runs."""
    before = _facts.set({**facts(), **given})
    acting = _actor.set(actor or _actor.get())
    try:
        yield
    finally:
        _facts.reset(before)
        _actor.reset(acting)


def facts() -> Facts:
    """Return what is known: attributes by their names."""
    return _facts.get() or {}


def learn(given: Mapping[str, str | int]) -> None:
    """Add to what is known, until the innermost ``scope`` ends."""
    known = _facts.get()
    if known is not None:
        known.update(given)


def actor() -> str | None:
    """Return who is at work; None outside of every actor (a command, a client)."""
    return _actor.get()


def named(**given: str | int | None) -> Facts:
    """Return facts under the names that spans and log lines carry (``sas.order_id``).

    Raises:
        ValueError: a name that is none of theirs.
    """
    unknown = set(given) - set(_NAMES)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: only {', '.join(_NAMES)} are told")
    return {f"sas.{name}": value for name, value in given.items() if value is not None}
