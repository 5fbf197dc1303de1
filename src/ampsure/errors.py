"""The errors users meet: one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

__all__ = ["AmpsureError", "InvalidEventsError"]


_LONGEST = 800  # characters


class AmpsureError(ValueError):
    """Bad input. The command line prints the message and exits with code 2.

    The message stays one line of a readable length, whatever it quotes from a file.
    """

    def __init__(self, sentence: str) -> None:
        line = " ".join(sentence.splitlines())
        half = _LONGEST // 2
        super().__init__(line if len(line) <= _LONGEST else f"{line[:half]} ... {line[-half:]}")


class InvalidEventsError(AmpsureError):
    """Momenta or amplitudes that no correct program can have written."""
