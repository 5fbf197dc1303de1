"""All numbers about one surrogate on one set of test events, and what they mean in words."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampsure.events import Events
from ampsure.surrogate import Prediction

from .accuracy import Accuracy, Bias, accuracy, bias, relative_deviation
from .binned import Binned, bin_edges, binned
from .calibration import Coverage, calibration_error, coverage, crps, negative_log_likelihood
from .observables import Observable, observables
from .pulls import PullSummary, pull_stat, pull_syst, pull_tot, summarise_pull

__all__ = ["Judgement", "ObservableJudgement", "as_json", "judge", "pulls_of"]

Floats = NDArray[np.float64]

LEVELS = np.linspace(0.02, 0.98, 49)
TOLERANCE = 0.05  # a pull this near to a unit Gaussian is called calibrated
LOCAL_TOLERANCE = 0.10  # the same for a bin
_ONE_SIGMA = 0.6826895


@dataclass(frozen=True)
class ObservableJudgement:
    """Accuracy and calibration in bins of one observable.

    Args:
        deviation: median |Delta|.
        bias: mean Delta.
        sigma: {"systematic", "statistical"}: median sigma/A, where there is such an uncertainty.
        core: half-width of the interval with 68.27 % of the total pulls: 1 if calibrated.
    """

    observable: Observable
    deviation: Binned
    bias: Binned
    sigma: dict[str, Binned]
    core: Binned | None


@dataclass(frozen=True)
class Judgement:
    """What is known about a surrogate.

    Args:
        outside: test events outside the training domain.
        pulls: by kind, "total", "systematic", "statistical"; only where that uncertainty is positive everywhere.
        coverage: of the total pull.
        calibration_error, nll, crps: of the relative residual (A_NN - A_train)/A_NN and sigma_tot/A_NN.
        verdict: sentences.
    """

    events: int
    outside: int
    accuracy: Accuracy
    bias: Bias
    pulls: dict[str, PullSummary]
    coverage: Coverage | None
    calibration_error: float | None
    nll: float | None
    crps: float | None
    observables: list[ObservableJudgement]
    verdict: list[str]


def pulls_of(prediction: Prediction, events: Events) -> dict[str, Floats]:
    """The pulls (N,) of a prediction by kind, where the uncertainty is positive everywhere."""
    p = prediction
    kinds = {
        "total": (pull_tot, p.sigma_tot, events.amplitude),
        "systematic": (pull_syst, p.sigma_syst, events.amplitude),
        "statistical": (pull_stat, p.sigma_stat, events.truth),
    }
    return {
        name: pull(p.amplitude, sigma, reference)
        for name, (pull, sigma, reference) in kinds.items()
        if (sigma > 0).all()
    }


def judge(prediction: Prediction, events: Events, *, bins: int = 40) -> Judgement:
    """Compare a prediction with the events it was made for."""
    p = prediction
    delta = relative_deviation(p.amplitude, events.truth)
    pulls = pulls_of(p, events)
    total = pulls.get("total")
    summaries = {name: summarise_pull(pull) for name, pull in pulls.items()}
    scores: list[float | None] = [None] * 3
    if total is not None:
        scale = np.abs(p.amplitude)
        residual, sigma = (p.amplitude - events.amplitude) / scale, p.sigma_tot / scale
        scores = [score(residual, sigma) for score in (calibration_error, negative_log_likelihood, crps)]
    split = [_by_observable(o, delta, p, total, bins) for o in observables(events)]
    found = accuracy(p.amplitude, events.truth)
    outside = int((~p.in_domain).sum())
    return Judgement(
        events=len(events),
        outside=outside,
        accuracy=found,
        bias=bias(delta),
        pulls=summaries,
        coverage=None if total is None else coverage(total, LEVELS),
        calibration_error=scores[0],
        nll=scores[1],
        crps=scores[2],
        observables=split,
        verdict=[*_calibration_in_words(summaries.get("total"), split), *_rest_in_words(found, outside, len(events))],
    )


def _by_observable(
    observable: Observable, delta: Floats, p: Prediction, total: Floats | None, bins: int
) -> ObservableJudgement:
    x = observable.values
    edges = bin_edges(x, bins, logarithmic=observable.logarithmic)
    sigmas = {"systematic": p.sigma_syst, "statistical": p.sigma_stat}
    return ObservableJudgement(
        observable,
        deviation=binned(x, np.abs(delta), edges),
        bias=binned(x, delta, edges, np.mean),
        sigma={
            name: binned(x, sigma / np.abs(p.amplitude), edges) for name, sigma in sigmas.items() if (sigma > 0).all()
        },
        core=None if total is None else binned(x, np.abs(total), edges, _core),
    )


def _core(size: Floats, axis: int) -> Floats:
    quantile: Floats = np.quantile(size, _ONE_SIGMA, axis=axis)
    return quantile


def _calibration_in_words(total: PullSummary | None, split: list[ObservableJudgement]) -> list[str]:
    if total is None:
        return ["There is no uncertainty to judge: this method gives none."]
    worst = max(abs(total.core - 1), abs(total.width - 1))
    if worst <= TOLERANCE:
        sentences = [f"Calibrated within {max(ceil(100 * worst), 1)} % overall."]
    elif abs(total.core - 1) <= TOLERANCE:
        sentences = [
            f"Calibrated within {max(ceil(100 * abs(total.core - 1)), 1)} % in the core of the pull, but its tails are "
            f"{'heavier' if total.width > 1 else 'lighter'} than Gaussian: its width is {total.width:.2f}."
        ]
    elif total.core > 1:
        sentences = [
            f"Overconfident overall: errors are {total.core:.2f} times as large as sigma says, and only "
            f"{total.coverage68:.1%} instead of 68.3 % are within one sigma."
        ]
    else:
        sentences = [
            f"Underconfident overall: errors are {total.core:.2f} times as large as sigma says, and "
            f"{total.coverage68:.1%} instead of 68.3 % are within one sigma."
        ]
    if total.kurtosis > 5 and worst > TOLERANCE:
        sentences.append(f"The kurtosis of the pull is {total.kurtosis:.1f} instead of 3: rare errors are very large.")
    for part in split:
        sentences += _local_in_words(part, total)
    return sentences


def _local_in_words(part: ObservableJudgement, total: PullSummary) -> list[str]:
    """Where the pull is off by more than the tolerance, beyond what it is off overall, and beyond chance."""
    core = part.core
    assert core is not None
    count = np.maximum(core.count, 1)
    # standard error of a quantile: sqrt(p (1 - p)/n) over the density of |t| there
    density = 2 * np.exp(-0.5) / np.sqrt(2 * np.pi)
    error = np.sqrt(_ONE_SIGMA * (1 - _ONE_SIGMA) / count) / density
    with np.errstate(invalid="ignore"):
        too_large = (core.value - 1 > LOCAL_TOLERANCE) & ((core.value - 1) / core.value > 3 * error)
        too_small = (1 - core.value > LOCAL_TOLERANCE) & (1 - core.value > 3 * error * core.value)
    sentences = []
    for mask, word, overall in (
        (too_large, "Overconfident", total.core - 1 > TOLERANCE),
        (too_small, "Underconfident", 1 - total.core > TOLERANCE),
    ):
        if mask.any() and not overall:
            where = "; ".join(_ranges(mask, core.edges, part.observable))
            share = core.count[mask].sum() / max(core.count.sum(), 1)
            worst = core.value[mask].max() if word == "Overconfident" else core.value[mask].min()
            sentences.append(f"{word} {where} ({share:.1%} of the events; errors up to {worst:.2f} times sigma).")
    return [s.replace("up to", "down to") if s.startswith("Under") else s for s in sentences]


def _ranges(mask: NDArray[np.bool_], edges: Floats, observable: Observable) -> list[str]:
    """Consecutive bins in words: 'above A = 1e-4', 'below', or 'for A from .. to ..'."""
    steps = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    unit = f" {observable.unit}" if observable.unit else ""
    words = []
    for start, stop in zip(steps[::2], steps[1::2], strict=True):
        low, high = f"{edges[start]:.3g}{unit}", f"{edges[stop]:.3g}{unit}"
        if stop == len(mask) and start > 0:
            words.append(f"above {observable.symbol} = {low}")
        elif start == 0 and stop < len(mask):
            words.append(f"below {observable.symbol} = {high}")
        else:
            words.append(f"for {observable.symbol} from {low} to {high}")
    return words


def _rest_in_words(found: Accuracy, outside: int, n: int) -> list[str]:
    sentences = []
    if abs(found.bias) > 3 * found.bias_error and abs(found.bias) > 0.1 * found.mean:
        word = "too large" if found.bias > 0 else "too small"
        sentences.append(f"Amplitudes are {word} by {abs(found.bias):.1e} on average.")
    if outside > 0.01 * n:
        sentences.append(f"{outside / n:.1%} of the test events are outside the domain of the training.")
    return sentences


def as_json(value: Any) -> Any:
    """Dataclasses, arrays and numbers of numpy as plain JSON; what is not finite becomes None.

    >>> as_json({"a": np.array([1.0, np.nan])})
    {'a': [1.0, None]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, np.generic):
        return as_json(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
