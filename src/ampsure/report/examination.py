"""A surrogate on its test events: what pages about surrogates have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ampsure.config import METHODS, Config, resolve
from ampsure.evaluation import (
    Binned,
    Judgement,
    Ratio,
    binned,
    judge,
    predictability,
    pulls_of,
    relative_deviation,
)
from ampsure.events import Events
from ampsure.io import checksum
from ampsure.prediction import Prediction
from ampsure.preprocessing import get_features
from ampsure.surrogate import Surrogate
from ampsure.threads import one_thread

from .page import Html, Kind, badge, verdict
from .style import exponents

__all__ = [
    "ACCURACY",
    "PULL",
    "SCORES",
    "Examination",
    "Metric",
    "examine",
    "method_in_words",
    "method_of",
    "number",
    "verdict_of",
]

Floats = NDArray[np.float64]

_MARKS: list[tuple[str, str, Kind]] = [
    ("no uncertainty", "no uncertainty", "none"),
    ("Too few to tell", "too few events", "none"),
    ("Overconfident overall", "overconfident", "bad"),
    ("Underconfident overall", "underconfident", "warn"),
    ("tails are heavier", "calibrated core, heavy tails", "warn"),
    ("tails are lighter", "calibrated core, light tails", "warn"),
    ("Overconfident", "calibrated overall, not everywhere", "warn"),
    ("Underconfident", "calibrated overall, not everywhere", "warn"),
]
_HALF = "50\u202f%"
_FEWEST, _MOST = 200, 50_000  # events a small network learns residuals from


@dataclass(frozen=True)
class Examination:
    """A surrogate, the events it was tested on, and what was found.

    Args:
        name: of the run.
        source: where the events come from, in words.
        residual: how much of the pull a small network can predict, see `evaluation.predictability`; None if the events
            are too few to tell.
    """

    name: str
    source: str
    surrogate: Surrogate
    events: Events
    prediction: Prediction
    judgement: Judgement
    residual: Ratio | None

    @cached_property
    def delta(self) -> Floats:
        return relative_deviation(self.prediction.amplitude, self.events.truth)

    @cached_property
    def pulls(self) -> dict[str, Floats]:
        return pulls_of(self.prediction, self.events)

    @cached_property
    def checksum(self) -> str:
        """Of the test events."""
        return checksum(self.events)

    @property
    def sigma(self) -> Floats:
        """sigma_tot/A, (N,)."""
        relative: Floats = self.prediction.sigma_tot / np.abs(self.prediction.amplitude)
        return relative

    def reliability(self, bins: int = 20) -> tuple[Binned, Binned] | None:
        """Root mean square of sigma_tot/A and of the residual, in bins of equal size in sigma_tot/A.

        None where there are too few events, or one sigma for all.
        """
        bins = min(bins, len(self.events) // 10)
        if "total" not in self.pulls or bins < 2 or self.sigma.max() < 1.01 * self.sigma.min():
            return None
        edges = np.unique(np.quantile(self.sigma, np.linspace(0, 1, bins + 1)))
        residual = self.pulls["total"] * self.sigma
        return binned(self.sigma, self.sigma, edges, _rms, bootstrap=0), binned(self.sigma, residual, edges, _rms)


def examine(surrogate: Surrogate, events: Events, name: str, source: str = "events in memory") -> Examination:
    """Predict, judge, and see what is left in the residuals."""
    prediction = surrogate.predict(events.momenta)
    judgement = judge(prediction, events)
    p = prediction
    finite = np.isfinite(p.amplitude + p.sigma_syst + p.sigma_stat + p.sigma_tot)
    if not finite.all():  # the judgement says so; nothing else can be drawn or counted
        events = events[finite]
        columns = (p.amplitude, p.sigma_syst, p.sigma_stat, p.sigma_tot, p.in_domain)
        prediction = Prediction(*(column[finite] for column in columns))
    residual = pulls_of(prediction, events).get("total", relative_deviation(prediction.amplitude, events.truth))
    left = None
    if len(events) >= _FEWEST and residual.any() and np.isfinite(residual).all():
        some = slice(None, None, -(-len(events) // _MOST))
        momenta = torch.from_numpy(events.momenta[some]).to(surrogate.device)
        raw = get_features(surrogate.config.features.inputs)(momenta, surrogate.process)
        with one_thread():
            left = predictability(surrogate.standardization(raw), residual[some])
    return Examination(name, source, surrogate, events, prediction, judgement, left)


class Metric(NamedTuple):
    """A number about an examination.

    Args:
        value, error: of what: an examination, or a summary of a pull.
        form: how it is written.
        ideal: what it should be; the nearest is the best. -inf: the lower the better. None: chance decides who is best.
        words: the ideal, where its number would not do.
    """

    label: str
    value: Callable[..., float | None]
    form: str = ".3g"
    ideal: float | None = None
    words: str | None = None
    error: Callable[..., float | None] = lambda _: None

    @property
    def target(self) -> str:
        return self.words if self.words is not None else number(self.ideal, self.form)

    def written(self, of: object) -> str:
        """The value, with its error where it has one."""
        error = self.error(of)
        value = number(self.value(of), self.form)
        return value if error is None or np.isnan(error) else f"{value} ± {number(error, self.form.lstrip('+z'))}"

    def distance(self, value: float) -> float:
        """Smaller is better."""
        assert self.ideal is not None
        return value if self.ideal == -np.inf else abs(value - self.ideal)


ACCURACY = [
    Metric("mean |Δ|", lambda e: e.judgement.accuracy.mean, ideal=0),
    Metric("median |Δ|", lambda e: e.judgement.accuracy.median, ideal=0),
    Metric("90 % quantile of |Δ|", lambda e: e.judgement.accuracy.quantile90, ideal=0),
    Metric("99 % quantile of |Δ|", lambda e: e.judgement.accuracy.quantile99, ideal=0),
    Metric("largest |Δ|", lambda e: e.judgement.accuracy.maximum, ideal=0),
    Metric("bias ⟨Δ⟩", lambda e: e.judgement.accuracy.bias, "+.2g", 0, "0", lambda e: e.judgement.accuracy.bias_error),
    Metric("amplitudes too small", lambda e: e.judgement.bias.share_negative, ".1%", words=_HALF),
    Metric("amplitudes too large", lambda e: e.judgement.bias.share_positive, ".1%", words=_HALF),
    Metric("sum of negative Δ", lambda e: e.judgement.bias.sum_negative),
    Metric("sum of positive Δ", lambda e: e.judgement.bias.sum_positive),
]
"""Of an examination."""

PULL = [
    Metric("mean", lambda s: s.mean, "+z.3f", words="0"),
    Metric("width", lambda s: s.width, ".3f", 1, "1"),
    Metric("core", lambda s: s.core, ".3f", 1, "1"),
    Metric("kurtosis", lambda s: s.kurtosis, ".2f", 3, "3"),
    Metric("KS distance", lambda s: s.ks, ".4f", 0, "0"),
    Metric("KS probability", lambda s: s.ks_significance, ".2g"),
    Metric("|t| < 1/4", lambda s: s.within_quarter, ".1%", 0.1974127),
    Metric("|t| < 1", lambda s: s.coverage68, ".1%", 0.6826895),
    Metric("|t| < 2", lambda s: s.coverage95, ".1%", 0.9544997),
    Metric("|t| < 3", lambda s: s.coverage99, ".2%", 0.9973002),
]
"""Of a `PullSummary`."""

SCORES = [
    Metric("calibration error (ENCE)", lambda e: e.judgement.calibration_error, ".3f", 0, "0"),
    Metric("negative log-likelihood (NLL)", lambda e: e.judgement.nll, ".3f", -np.inf, "low"),
    Metric("ranked probability score (CRPS)", lambda e: e.judgement.crps, ".3g", -np.inf, "low"),
    Metric(
        "predictable share of residuals, R²",
        lambda e: e.residual and e.residual.value,
        "z.3f",
        0,
        "0",
        lambda e: e.residual and e.residual.error,
    ),
]
"""Of an examination."""


def number(value: float | None, form: str) -> str:
    """A number in a table; a dash where there is none.

    >>> number(-1.234e-7, ".2g"), number(0.6827, ".1%"), number(None, ".1f")
    ('−1.2×10⁻⁷', '68.3\u202f%', '–')
    """
    if value is None or not np.isfinite(value):
        return "–"
    return exponents(f"{value:{form}}").replace("-", "−").replace("%", "\u202f%")


def verdict_of(judgement: Judgement) -> Html:
    """The judgement in words, with a badge."""
    mark, kind = _calibration(judgement)
    return verdict(badge(mark, kind), list(map(exponents, judgement.verdict)), kind)


def _calibration(judgement: Judgement) -> tuple[str, Kind]:
    """The verdict in a word, so that badge and sentences never disagree."""
    words = " ".join(judgement.verdict)
    for sign, mark, kind in _MARKS:
        if sign in words:
            return mark, kind
    return "calibrated", "good"


def method_of(config: Config) -> str | None:
    """The method by name, if likelihood and posterior are those of one; its size and strengths may differ."""

    def kind(config: Config) -> tuple[object, ...]:
        return config.likelihood, config.posterior.name, config.posterior.systematic

    return next((name for name in METHODS if kind(resolve(name)) == kind(config)), None)


def method_in_words(config: Config) -> str:
    """'repulsive (gaussian likelihood, ensemble posterior of 4)'."""
    posterior = config.posterior
    size = f" of {posterior.members}" if posterior.name == "ensemble" else ""
    parts = f"{config.likelihood.name} likelihood, {posterior.name} posterior{size}"
    name = method_of(config)
    return parts if name is None else f"{name} ({parts})"


def _rms(values: Floats, axis: int) -> Floats:
    root: Floats = np.sqrt(np.mean(np.square(values), axis=axis))
    return root
