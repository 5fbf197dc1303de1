r"""Unweighting with a surrogate first and the exact amplitude for what is left.

Danziger, Janssen, Schumann, Siegert, arXiv:2109.11964. A point with weight s by the surrogate survives the first stage
with probability min(1, s/w_max), and becomes an event, with x = w/s from the exact weight w, with probability
min(1, x/x_max). It has the weight max(1, s/w_max) max(1, x/x_max), so that the expectation of accepted weight is
w/(w_max x_max) at every point: unbiased for any surrogate and any maxima; a bad surrogate costs time alone.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from math import ceil, log1p
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from ampsure._version import versions
from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.generation import GenerationSummary, get_settings
from ampsure.generation.generate import TOO_UNEVEN, Report, as_integer
from ampsure.generation.phase_space import ChiliSpace, CrossSection
from ampsure.generation.sampler import NOTHING, FlowSampler, Sampler, training_rounds
from ampsure.generation.unweighting import maximum_weight, unweighting_efficiency
from ampsure.prediction import Prediction
from ampsure.processes import Process
from ampsure.threads import one_thread

from .amplitudes import Exact, Predicts, evaluate

__all__ = ["TwoStageSummary", "adapted_sampler", "learned_maximum", "two_stage"]

Floats = NDArray[np.float64]

_BATCH = 20_000
_PILOT = (20_000, 400_000)  # points, at least and at most: the surrogate is cheap, and large weights are rare
_MEASURED = 2000  # exact amplitudes to measure the second maximum with
_SMALLEST_EFFICIENCY = 1e-4


@dataclass(frozen=True)
class TwoStageSummary:
    """What a two-stage unweighting found out; kept in `Events.provenance["two_stage"]`.

    Args:
        cross_section, cross_section_error: in pb.
        points: drawn; those inside the cuts were given to the surrogate.
        cut_efficiency: share of points inside the cuts.
        first_efficiency, second_efficiency: shares of points inside the cuts, and of those left, that survive.
        first_maximum, second_maximum: w_max in pb, and x_max.
        first_overweight, second_overweight: share of the cross section in weights above either maximum.
        surrogate_evaluations, exact_evaluations: per accepted event.
        pilot_surrogate_evaluations, pilot_exact_evaluations: in all, to adapt the sampling and to find the maxima.
        effective_share: Kish's effective number of events, per event.
    """

    cross_section: float
    cross_section_error: float
    points: int
    cut_efficiency: float
    first_efficiency: float
    second_efficiency: float
    first_maximum: float
    second_maximum: float
    first_overweight: float
    second_overweight: float
    surrogate_evaluations: float
    exact_evaluations: float
    pilot_surrogate_evaluations: int
    pilot_exact_evaluations: int
    effective_share: float
    seconds: float

    def cost(self, t_exact: float, t_surrogate: float, t_phase_space: float = 0.0) -> float:
        """Seconds per effective event, from seconds per exact amplitude, surrogate amplitude, and point drawn."""
        drawn = self.surrogate_evaluations / self.cut_efficiency
        evaluated = self.surrogate_evaluations * t_surrogate + self.exact_evaluations * t_exact
        return (drawn * t_phase_space + evaluated) / self.effective_share

    def gain(
        self,
        plain: GenerationSummary,
        n: int,
        *,
        t_exact: float,
        t_surrogate: float,
        t_phase_space: float = 0.0,
    ) -> float:
        r"""How many times faster than plain unweighting an effective event is made: f_eff of the paper.

        f_eff = 1/(t_surr/t_full eps_full/(eps_1 eps_2) + t_exact/t_full eps_full/eps_2), times the ratio of Kish's
        effective sizes; t_full and t_surr contain the phase space, which the second stage has no need to draw again.

        Args:
            plain: summary of a plain unweighting of n events.
        """
        points = 1 / plain.unweighting_efficiency  # per event
        seconds = points * (t_phase_space + plain.cut_efficiency * t_exact) / (plain.effective_size / n)
        return seconds / self.cost(t_exact, t_surrogate, t_phase_space)


def learned_maximum(weights: Floats, log_width: Floats, share: float) -> float:
    r"""x_max from the surrogate's own uncertainty, without a single exact amplitude.

    Where the surrogate gives log A_exact ~ N(log A, v), the excess of x = A_exact/A above a maximum has the expectation
    E[(x - x_max)_+] = e^(v/2) Phi(d + sqrt(v)) - x_max Phi(d), d = -log(x_max)/sqrt(v). Its sum over points, weighted
    by the surrogate, is the share asked for of the sum of e^(v/2).

    Args:
        weights: (N,) of points by the surrogate.
        log_width: (N,) sqrt(v).
        share: of the cross section that may lie above the maximum.

    >>> learned_maximum(np.ones(2), np.zeros(2), 0.01)  # x is one everywhere
    0.99
    """
    width = np.clip(log_width, 1e-9, None)
    mean = np.exp(width**2 / 2)
    allowed = share * float((weights * mean).sum())

    def excess(log_maximum: float) -> float:
        d = -log_maximum / width
        return float((weights * (mean * ndtr(d + width) - np.exp(log_maximum) * ndtr(d))).sum()) - allowed

    low, high = log1p(-share) - 1e-12, 1.0  # x has a median of one
    while excess(high) > 0:
        high *= 2
        if high > 600:
            raise AmpsureError("The surrogate is too unsure to tell the second maximum: let it be measured.")
    return round(float(np.exp(brentq(excess, low, high, xtol=1e-10))), 9)


def adapted_sampler(
    surrogate: Predicts, n: int, *, process: Process | None = None, preset: str = "benchmark",
    seed: int = 1, report: Report | None = None, **overrides: Any,
) -> FlowSampler:  # fmt: skip
    """A flow trained on the cross section of the surrogate, for `n` events; no exact amplitude is needed."""
    cross_section = _cross_section(surrogate, process, preset, overrides)
    sampler = FlowSampler(cross_section, seed, rounding=1e-3)  # a network's precision; proposals need no more
    rounds = training_rounds(n)
    with one_thread():
        for done in sampler.adapt(rounds, lambda points: cross_section(points)[0]):
            if report is not None:
                report("adapting to the surrogate", done, sum(rounds))
    return sampler


def two_stage(
    surrogate: Predicts,
    n: int,
    *,
    exact: Exact | None = None,
    process: Process | None = None,
    preset: str = "benchmark",
    seed: int = 1,
    overweight: float = 1e-3,
    maximum: str | float = "measured",
    sampler: Sampler | None = None,
    report: Report | None = None,
    **overrides: Any,
) -> Events:
    """Unweighted events of the exact cross section, with few exact amplitudes.

    Args:
        n: number of events.
        exact: amplitude of momenta (N, n, 4) -> (N,); by default that of the process.
        process: by default that of the surrogate.
        preset, overrides: as for `ampsure.generate`.
        overweight: share of the cross section that may lie above the maximum, in each stage.
        maximum: of the second stage: "measured" with exact amplitudes of a pilot run, "learned" from the surrogate's
            uncertainties (see `learned_maximum`), or a number.
        sampler: of phase-space points; by default a flow trained on the surrogate.
        report: called with (stage, done, total).
    """
    process = process or getattr(surrogate, "process", None)
    if process is None or (exact is None and process.exact is None):
        raise AmpsureError("No exact amplitude is known for the second stage: give exact=..., or register it.")
    n, seed = as_integer(n, "number of events"), as_integer(seed, "seed")
    if n < 1 or not 0 <= seed < 2**63 or not 0 < overweight < 1:
        raise AmpsureError("Ask for at least one event, a seed of zero or more, and an overweight share in (0, 1).")
    measured = maximum == "measured"
    if not (measured or maximum == "learned" or (isinstance(maximum, int | float) and maximum > 0)):
        raise AmpsureError(f"The second maximum is 'measured', 'learned' or a positive number, not {maximum!r}.")
    started = time.monotonic()
    cross_section = _cross_section(surrogate, process, preset, overrides)
    couplings = cross_section.settings.couplings
    amplitude: Exact = exact or (lambda momenta: process.amplitude(momenta, **couplings))
    shown = report or (lambda *_: None)
    trained = 0 if sampler is not None else sum(training_rounds(n))
    if sampler is None:
        sampler = adapted_sampler(surrogate, n, process=process, preset=preset, seed=seed, report=report, **overrides)
    size = min(_BATCH, max(2000, 5 * n))
    with one_thread():
        pilot_points = min(max(20 * n, _PILOT[0]), _PILOT[1])
        pilot = [_draw(cross_section, sampler, size, [seed, 4, k]) for k in range(ceil(pilot_points / size))]
        weights = np.concatenate([batch.weights for batch in pilot])
        if not weights.size:
            raise AmpsureError(NOTHING)
        w_max = maximum_weight(weights, overweight * weights.sum())
        x_max, second, asked = _second_maximum(surrogate, pilot, w_max, amplitude, overweight, maximum)
        per_batch = unweighting_efficiency(weights, w_max) * len(weights) / len(pilot) * second
        tally, kept = _Tally(w_max, x_max), []
        if per_batch < _SMALLEST_EFFICIENCY * size:
            raise AmpsureError(TOO_UNEVEN)
        planned, number = ceil(1.01 * n / per_batch) + 1, 0
        most = 100 * planned
        # Whether to go on is asked only after a planned number of batches: asking after each would favour lucky ends.
        while True:
            while number < planned:
                batch = _draw(cross_section, sampler, size, [seed, 5, number])
                kept.append(_unweighted(batch, w_max, x_max, amplitude, tally))
                number += 1
                shown("unweighting in two stages", min(n * number / planned, n), n)
            if tally.accepted >= n:
                break
            planned += ceil((n - tally.accepted) * number / max(tally.accepted, 1)) + 1
            if planned > most:
                raise AmpsureError(TOO_UNEVEN)
    momenta, truth, event_weights = (np.concatenate(columns)[:n] for columns in zip(*kept, strict=True))
    seen = trained + sum(len(batch.weights) for batch in pilot)
    kish = float(event_weights.sum() ** 2 / np.square(event_weights).sum() / n)
    summary = TwoStageSummary(
        **tally.summary(),
        first_maximum=w_max,
        second_maximum=x_max,
        pilot_surrogate_evaluations=seen,
        pilot_exact_evaluations=asked,
        effective_share=kish,
        seconds=time.monotonic() - started,
    )
    provenance = {
        "command": {"name": "two_stage", "process": process.name, "n": n, "preset": preset, "seed": seed}
        | {"overweight": overweight, "maximum": maximum},
        "settings": cross_section.settings.model_dump(mode="json"),
        "versions": versions(),
        "generation": {
            "cross_section": summary.cross_section,
            "cross_section_error": summary.cross_section_error,
            "effective_size": n * kish,
        },
        "two_stage": asdict(summary),
    }
    return Events(momenta, truth, process, weights=event_weights, provenance=provenance)


def _cross_section(
    surrogate: Predicts, process: Process | None, preset: str, overrides: dict[str, Any]
) -> CrossSection:
    """The cross section with the surrogate's amplitude."""
    process = process or getattr(surrogate, "process", None)
    if process is None:
        raise AmpsureError("The surrogate does not say of which process it is: give process=...")

    def predicted(momenta: Floats, **_: Any) -> Floats:
        if not len(momenta):
            return np.zeros(0)
        return _median(surrogate.predict(momenta))[0]

    settings = get_settings(preset, **overrides)
    if settings.density is None:
        raise AmpsureError("Two-stage unweighting needs a parton density.")
    return CrossSection(replace(process, exact=predicted), settings, ChiliSpace(process, settings))


def _median(p: Prediction) -> tuple[Floats, Floats]:
    """Median of the amplitude and standard deviation of its logarithm, (N,) each, if it is log-normal.

    Outside the domain the mean explodes with the width, the median hardly moves.
    """
    mean, sigma = np.asarray(p.amplitude, np.float64), np.asarray(p.sigma_tot, np.float64)
    if not (np.isfinite(mean) & (mean > 0) & np.isfinite(sigma)).all():  # such points could never become events
        raise AmpsureError("Rejection needs a surrogate that is finite and positive everywhere, and it is not.")
    width = np.sqrt(np.log1p(np.square(sigma / mean)))
    return mean * np.exp(-(width**2) / 2), width


@dataclass(frozen=True)
class _Batch:
    """Points inside the cuts of `drawn` ones: momenta, surrogate amplitude, surrogate weight, two uniform numbers."""

    drawn: int
    momenta: Floats
    amplitude: Floats
    weights: Floats
    uniform: Floats  # (2, M)


def _draw(cross_section: CrossSection, sampler: Sampler, size: int, stream: list[int]) -> _Batch:
    rng = np.random.default_rng(stream)
    points, inverse_density = sampler.draw(size, rng)
    weights, momenta, amplitude = cross_section(points)
    weights = (weights * inverse_density)[weights > 0]
    return _Batch(size, momenta, amplitude, weights, rng.random((2, len(weights))))


def _second_maximum(
    surrogate: Predicts, pilot: list[_Batch], w_max: float, exact: Exact, share: float, maximum: str | float
) -> tuple[float, float, int]:
    """x_max, the efficiency it will have, as far as that is known, and the number of exact amplitudes it took."""
    if not isinstance(maximum, str):
        return float(maximum), 1.0, 0
    momenta, amplitude, weights = (
        np.concatenate([getattr(batch, name) for batch in pilot]) for name in ("momenta", "amplitude", "weights")
    )
    uniform = np.concatenate([batch.uniform[0] for batch in pilot])
    left = np.flatnonzero(uniform * w_max < weights)
    over = np.maximum(weights[left] / w_max, 1.0)
    if maximum == "learned":
        p = surrogate.predict(momenta[left])
        known = np.asarray(p.in_domain)  # elsewhere the uncertainty is no better known than the amplitude
        if not known.any():
            raise AmpsureError("No point lies in the domain of the surrogate: let the second maximum be measured.")
        x_max = learned_maximum(over[known], _median(p)[1][known], share)
        return x_max, 1 / max(x_max, 1.0), 0
    left, over = left[:_MEASURED], over[:_MEASURED]
    x = evaluate(exact, momenta[left], signed=False) / amplitude[left]
    if not x.any():
        raise AmpsureError(NOTHING)
    x_max = maximum_weight(x, share * float((over * x).sum()), over)
    return x_max, unweighting_efficiency(x, x_max), len(left)


def _unweighted(
    batch: _Batch, w_max: float, x_max: float, exact: Exact, tally: _Tally
) -> tuple[Floats, Floats, Floats]:
    """Momenta, exact amplitudes and weights of the events in a batch."""
    first, second = batch.uniform
    left = np.flatnonzero(first * w_max < batch.weights)
    amplitude = evaluate(exact, batch.momenta[left], signed=False)
    over, x = np.maximum(batch.weights[left] / w_max, 1.0), amplitude / batch.amplitude[left]
    accepted = second[left] * x_max < x
    tally.add(batch, left, over, x, int(accepted.sum()))
    return batch.momenta[left][accepted], amplitude[accepted], (over * np.maximum(x / x_max, 1.0))[accepted]


class _Tally:
    """Counts, shares above the maxima, and the cross section.

    A point contributes s, plus w_max max(1, s/w_max) (x - 1) if it survives the first stage; the expectation of the sum
    is w, and the surrogate's part of it, which all points give, hardly fluctuates.
    """

    def __init__(self, w_max: float, x_max: float) -> None:
        self._w_max, self._x_max = w_max, x_max
        self._points = self._inside = self._left = self.accepted = 0
        self._sums = np.zeros(6)

    def add(self, batch: _Batch, left: NDArray[np.int64], over: Floats, x: Floats, accepted: int) -> None:
        self._points += batch.drawn
        self._inside += len(batch.weights)
        self._left += len(left)
        self.accepted += accepted
        s, found = batch.weights, batch.weights.copy()
        found[left] += self._w_max * over * (x - 1)
        above = over * np.maximum(x - self._x_max, 0)
        rows = (found, found**2, s, np.maximum(s - self._w_max, 0), over * x, above)
        self._sums += [row.sum() for row in rows]

    def summary(self) -> dict[str, Any]:
        total, squares, surrogate, above, exact, above_second = self._sums / self._points
        error = np.sqrt(max(squares - total**2, 0.0) / max(self._points - 1, 1))
        return {
            "cross_section": float(total),
            "cross_section_error": float(error),
            "points": self._points,
            "cut_efficiency": self._inside / self._points,
            "first_efficiency": self._left / self._inside,
            "second_efficiency": self.accepted / self._left,
            "first_overweight": float(above / surrogate),
            "second_overweight": float(above_second / exact),
            "surrogate_evaluations": self._inside / self.accepted,
            "exact_evaluations": self._left / self.accepted,
        }
