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
        text = self.text if self.about in self.text else f"{self.text}: {self.about}"
        return f"invariant {self.number}: {text}" if self.number else text
