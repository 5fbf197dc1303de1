"""The errors users meet: one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

__all__ = ["AmpsureError", "InvalidEventsError"]


class AmpsureError(ValueError):
    """Bad input. The command line prints the message and exits with code 2."""


class InvalidEventsError(AmpsureError):
    """Momenta or amplitudes that no correct program can have written."""
