"""What a simulation reports when an invariant does not hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold: its number, and what happened.

    ``about`` says what a step of the adopter does wrong, in the same words for every order. The
    number is 0 if no invariant is broken, but a function raised an error that it must not raise.
    """

    number: int
    text: str
    about: str = ""

    def __str__(self) -> str:
        return f"invariant {self.number}: {self.text}" if self.number else self.text
