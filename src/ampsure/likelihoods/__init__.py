"""What the outputs of a network mean: a density of the standardised log-amplitude, given the outputs."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from ampsure.errors import AmpsureError

from .base import Likelihood
from .distilled import Distilled
from .evidential import Evidential
from .evidential_mixture import EvidentialMixture
from .gaussian import Gaussian
from .mixture import Mixture
from .mse import MSE
from .natural import Natural

__all__ = [
    "LIKELIHOODS",
    "MSE",
    "Distilled",
    "Evidential",
    "EvidentialMixture",
    "Gaussian",
    "Likelihood",
    "Mixture",
    "Natural",
    "get_likelihood",
]

LIKELIHOODS: dict[str, type[Likelihood]] = {
    likelihood.name: likelihood
    for likelihood in (MSE, Gaussian, Natural, Mixture, Evidential, EvidentialMixture, Distilled)
}


def get_likelihood(name: str, **options: Any) -> Likelihood:
    """The likelihood of that name; what `name` and `options()` of a likelihood say brings it back.

    >>> get_likelihood("gaussian", beta=0.5)
    Gaussian(beta=0.5, faithful=False, outliers=0.0)
    >>> get_likelihood("gausian")
    Traceback (most recent call last):
    ampsure.errors.AmpsureError: Unknown likelihood 'gausian'; did you mean 'gaussian'?
    """
    if name not in LIKELIHOODS:
        raise AmpsureError(f"Unknown likelihood {name!r}; {_nearest(name, list(LIKELIHOODS))}")
    defaults = LIKELIHOODS[name]().options()
    known = list(defaults)
    for option in options:
        if option not in known:
            raise AmpsureError(f"The likelihood {name!r} has no option {option!r}; {_nearest(option, known)}")
        default, value = defaults[option], options[option]
        numeric = isinstance(default, float) and isinstance(value, int | float) and not isinstance(value, bool)
        if type(value) is not type(default) and not numeric:
            kind = type(default).__name__
            raise AmpsureError(
                f"The option {option!r} of the likelihood {name!r} must be of type {kind}, not {value!r}."
            )
    return LIKELIHOODS[name](**options)


def _nearest(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1, cutoff=0)
    return f"did you mean {close[0]!r}?" if close else "it has none."
