"""All numbers about one surrogate on one set of test events, and what they mean in words."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from math import ceil, exp, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, special, stats

from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.prediction import Prediction

from .accuracy import Accuracy, Bias, accuracy, bias, relative_deviation
from .binned import Binned, bin_edges, binned
from .calibration import Coverage, calibration_error, coverage, crps, negative_log_likelihood
from .observables import Observable, observables
from .pulls import PullSummary, pull_stat, pull_syst, pull_tot, summarise_pull

__all__ = ["Judgement", "ObservableJudgement", "as_json", "judge", "pulls_of"]

Floats = NDArray[np.float64]

LEVELS = np.linspace(0.02, 0.98, 49)
TOLERANCE = 0.05  # a pull this near to a unit Gaussian is called calibrated
LOCAL_TOLERANCE = 0.10  # the same for a bin, next to all events
TOO_COARSE = 0.5  # a pull known no better than this says nothing about calibration
FALSE_ALARMS = 0.01  # share of calibrated surrogates that are blamed for a range of some observable
_ONE_SIGMA = 0.6826895
_CORE_ERROR = sqrt(_ONE_SIGMA * (1 - _ONE_SIGMA)) / (2 * exp(-0.5) / sqrt(2 * pi))  # of one pull: a core has it/sqrt(N)


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


@np.errstate(divide="ignore", invalid="ignore")  # amplitudes that are exactly zero
def judge(prediction: Prediction, events: Events, *, bins: int = 40) -> Judgement:
    """Compare a prediction with the events it was made for; every event counts the same, whatever its weight."""
    p, n = prediction, len(events)
    if not n or len(p.amplitude) != n:
        raise AmpsureError(f"A judgement needs as many predictions as events, not {len(p.amplitude)} for {n} events.")
    finite: NDArray[np.bool_] = np.isfinite(p.amplitude + p.sigma_syst + p.sigma_stat + p.sigma_tot)
    if not finite.all():
        if not finite.any():
            raise AmpsureError(f"None of the {n} predictions is finite: there is nothing to judge.")
        columns = (p.amplitude, p.sigma_syst, p.sigma_stat, p.sigma_tot, p.in_domain)
        rest = judge(Prediction(*(column[finite] for column in columns)), events[finite], bins=bins)
        sentence = f"{n - rest.events} of the {n} predictions are not finite: all else is about the others."
        return replace(rest, verdict=[sentence, *rest.verdict])
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
        events=n,
        outside=outside,
        accuracy=found,
        bias=bias(delta),
        pulls=summaries,
        coverage=None if total is None else coverage(total, LEVELS),
        calibration_error=scores[0],
        nll=scores[1],
        crps=scores[2],
        observables=split,
        verdict=[*_calibration_in_words(p.sigma_tot, total, summaries, split), *_rest_in_words(found, outside, n)],
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


def _calibration_in_words(
    sigma: Floats, pull: Floats | None, summaries: dict[str, PullSummary], split: list[ObservableJudgement]
) -> list[str]:
    if pull is None:
        zero = f"it is zero for {(sigma <= 0).sum()} of {len(sigma)} events"
        return [f"There is no uncertainty to judge: {zero if sigma.any() else 'this method gives none'}."]
    total = summaries["total"]
    core_off, width_off = abs(total.core - 1), abs(total.width - 1)
    worst = max(core_off, width_off)
    error = _CORE_ERROR / sqrt(len(pull))
    tolerance = max(TOLERANCE, 3 * error)
    limited = f", as far as {len(pull)} events can tell" if max(worst, error) > TOLERANCE else ""
    if worst <= tolerance and tolerance > TOO_COARSE:
        sentences = [f"Too few to tell: {len(pull)} events neither confirm nor contradict the uncertainties."]
    elif worst <= tolerance:
        sentences = [f"Calibrated within {max(ceil(100 * worst), 1)} % overall{limited}."]
    elif core_off <= tolerance:
        sentences = [
            f"Calibrated within {max(ceil(100 * core_off), 1)} % in the core of the pull, but its tails are "
            f"{'lighter' if total.width < 1 else 'heavier'} than Gaussian: its width is {total.width:.2f}."
        ]
    else:
        word, only = ("Overconfident", "only ") if total.core > 1 else ("Underconfident", "")
        sentences = [
            f"{word} overall: errors are {total.core:.2f} times as large as sigma says, and {only}"
            f"{_percent(total.coverage68)} instead of 68.3 % are within one sigma."
        ]
    if total.kurtosis > 5 and worst > tolerance:
        sentences.append(f"The kurtosis of the pull is {total.kurtosis:.1f} instead of 3: rare errors are very large.")
    cores = [_well_filled(part, np.abs(pull)) for part in split]
    trials = 2 * sum(len(core.value) for core in cores)
    for part, core in zip(split, cores, strict=True):
        sentences += _local_in_words(part.observable, core, pull, total.core, FALSE_ALARMS / trials)
    return sentences


def _well_filled(part: ObservableJudgement, size: Floats, least: int = 50) -> Binned:
    """The core in bins that are joined until each has some events, as sparse ones cannot tell anything."""
    edges, ends, n = part.deviation.edges, [0], 0
    for end, count in enumerate(part.deviation.count, start=1):
        n += count
        if n >= least:
            ends, n = [*ends, end], 0
    ends = [*ends[: max(len(ends) - 1, 1)], len(edges) - 1]  # what is left joins the last
    return binned(part.observable.values, size, edges[ends], _core, bootstrap=0)


def _local_in_words(
    observable: Observable, core: Binned, pull: Floats, overall: float, false_alarms: float
) -> list[str]:
    """Where the pull is off by more than the tolerance, beyond what it is off overall, and beyond chance.

    The core of n pulls is the one of rank 1 + 0.6827 (n - 1). If they are drawn from all N, the share of these below it
    follows a beta distribution, which gives the probability of a core as large or as small by chance. All N are scaled
    to a core of one before, unless they are off the same way: no bin is blamed for what others are.

    Args:
        overall: core of all pulls (N,).
        false_alarms: probability to blame a bin by chance. Its neighbours need one standard error only.
    """
    count, rank = core.count, 1 + _ONE_SIGMA * (core.count - 1)
    size = np.sort(np.abs(pull))
    sentences = []
    for word, reference, bound, worst in (
        ("Overconfident", max(overall, 1), "up", np.max),
        ("Underconfident", min(overall, 1), "down", np.min),
    ):
        value = core.value / reference
        below = (np.searchsorted(size, value * overall) + 0.5) / (len(size) + 1)
        if bound == "up":
            off, chance = value > 1 + LOCAL_TOLERANCE, special.betainc(count + 1 - rank, rank, 1 - below)
        else:
            off, chance = value < 1 - LOCAL_TOLERANCE, special.betainc(rank, count + 1 - rank, below)
        groups, _ = ndimage.label(off & (chance < 0.16))
        mask = (groups > 0) & np.isin(groups, groups[chance < false_alarms])
        if mask.any():
            where = "; ".join(_ranges(mask, core.edges, observable))
            share, errors = count[mask].sum() / count.sum(), worst(core.value[mask])
            sentences.append(
                f"{word} {where} ({_percent(share)} of the events; errors {bound} to {errors:.2f} times sigma)."
            )
    return sentences


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


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _rest_in_words(found: Accuracy, outside: int, n: int) -> list[str]:
    sentences = []
    certain = stats.t.isf(0.00135, max(n - 1, 1)) * found.bias_error  # three standard errors of many events
    if abs(found.bias) > certain and abs(found.bias) > 0.1 * found.mean:
        word = "too large" if found.bias > 0 else "too small"
        sentences.append(f"Amplitudes are {word} by {abs(found.bias):.1e} on average.")
    if outside > 0.01 * n:
        sentences.append(f"{_percent(outside / n)} of the test events are outside the domain of the training.")
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
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return as_json(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
