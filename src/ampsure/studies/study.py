"""What a study is: a grid of trainings, what is measured of each, a figure, and claims that the numbers decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import hypot, inf, isfinite, nan, sqrt
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from ampsure.config import Config
from ampsure.disturbances import Disturbance
from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.surrogate import Surrogate

from .presets import Preset

__all__ = ["Case", "Check", "Claim", "Estimate", "Results", "Study", "Table", "Verdict", "estimate", "ratio"]

Floats = NDArray[np.float64]
Outcome = Literal["confirmed", "refuted", "inconclusive"]


@dataclass(frozen=True)
class Case:
    """One training of a grid.

    Args:
        labels: what tells it apart in its study, as JSON values; `run` counts repetitions with other seeds.
        config: of the training.
        disturbances: of the data.
        test_share: of the events, the last ones of the random order, which the surrogate is tested on.
    """

    labels: dict[str, Any]
    config: Config
    disturbances: tuple[Disturbance, ...] = ()
    test_share: float = 0.2


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error over independent runs; infinite if there is one run."""

    value: float
    error: float


def estimate(values: ArrayLike) -> Estimate:
    """Mean of independent runs (R,), its error widened by Student's t, so that it is a standard error for few runs too.

    >>> estimate([1.0, 1.5, 2.0]).value
    1.5
    """
    values = np.asarray(values, dtype=np.float64)
    n = len(values)
    if n == 0:
        raise AmpsureError("A study has no results for one of its claims: run it again.")
    mean = float(values.mean())
    if n == 1:
        return Estimate(mean, inf)
    widening = float(stats.t.ppf(0.841345, n - 1))
    return Estimate(mean, widening * float(values.std(ddof=1)) / sqrt(n))


def ratio(above: Estimate, below: Estimate) -> Estimate:
    """Their ratio, with the error of independent numbers; nan if there is nothing to divide by."""
    if not below.value:
        return Estimate(nan, inf)
    value = above.value / below.value
    return Estimate(value, hypot(above.error, value * below.error) / abs(below.value))


@dataclass(frozen=True)
class Check:
    """A number the claim says something about: that it lies between low and high."""

    quantity: str
    found: Estimate
    low: float = -inf
    high: float = inf

    @property
    def outcome(self) -> Outcome:
        """Inside by a standard error: confirmed. Outside by two: refuted. Otherwise the runs cannot tell."""
        value, error = self.found.value, self.found.error
        if not isfinite(value):
            return "inconclusive"
        if self.low <= value - error and value + error <= self.high:
            return "confirmed"
        if value + 2 * error < self.low or value - 2 * error > self.high:
            return "refuted"
        return "inconclusive"

    @property
    def claimed(self) -> str:
        """What the paper says of it, in words; a number without bounds is there for comparison."""
        if self.low == -inf:
            return f"claimed < {self.high:.3g}" if self.high < inf else "for comparison"
        return f"claimed > {self.low:.3g}" if self.high == inf else f"claimed {self.low:.3g} to {self.high:.3g}"

    @property
    def measured(self) -> str:
        """The number with its error, in words."""
        return f"{self.found.value:.3g}" + (
            f" ± {self.found.error:.1g}" if isfinite(self.found.error) else " (one run)"
        )

    def __str__(self) -> str:
        outcome = "" if self.claimed == "for comparison" else f": {self.outcome}"
        return f"{self.quantity}: {self.measured} ({self.claimed}){outcome}"


@dataclass(frozen=True)
class Verdict:
    """The outcome of all checks of a claim: each must hold, and one that does not is enough to refute it."""

    claim: str
    text: str
    checks: list[Check]

    @property
    def outcome(self) -> Outcome:
        outcomes = {check.outcome for check in self.checks}
        if "refuted" in outcomes:
            return "refuted"
        return "confirmed" if outcomes == {"confirmed"} else "inconclusive"


@dataclass
class Results:
    """What was measured of all cases of a study.

    Args:
        cases: {"labels": ..., "measured": ...} of each.
        data: what was measured of the events themselves.
    """

    cases: list[dict[str, Any]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def where(self, **labels: Any) -> Iterator[dict[str, Any]]:
        """The measurements of all cases with these labels."""
        for case in self.cases:
            if all(case["labels"].get(name) == value for name, value in labels.items()):
                yield case["measured"]

    def values(self, path: str, **labels: Any) -> Floats:
        """(R,) one number of every case with these labels, by its path, e.g. "pulls.total.width"."""
        return np.array([_at(measured, path) for measured in self.where(**labels)], dtype=np.float64)

    def estimate(self, path: str, **labels: Any) -> Estimate:
        """The mean of that number over runs."""
        return estimate(self.values(path, **labels))

    def first(self, path: str, **labels: Any) -> Any:
        """The same, of the first run alone."""
        for measured in self.where(**labels):
            return _at(measured, path)
        raise AmpsureError(f"The study has no result for {labels}: run it again.")

    def labels(self, name: str, **labels: Any) -> list[Any]:
        """All values of one label, in the order of the grid."""
        found = [case["labels"].get(name) for case in self.cases if {**case["labels"], **labels} == case["labels"]]
        return list(dict.fromkeys(value for value in found if value is not None))


def _at(measured: Any, path: str) -> Any:
    try:
        for name in path.split("."):
            measured = measured[int(name)] if isinstance(measured, list) else measured[name]
    except (KeyError, IndexError, TypeError) as error:  # of an older version
        raise AmpsureError(f"The study has no result for {path!r}: run it again with --remeasure.") from error
    return np.nan if measured is None else measured


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and the numbers that decide it."""

    id: str
    text: str
    checks: Callable[[Results], list[Check]]

    def judge(self, results: Results) -> Verdict:
        return Verdict(self.id, self.text, self.checks(results))


@dataclass(frozen=True)
class Table:
    """Header and rows of text, and what they are about if a study has several."""

    header: list[str]
    rows: list[list[str]]
    title: str = ""


@dataclass(frozen=True)
class Study:
    """A figure or a table of the paper.

    Args:
        name: on the command line.
        label: of the figure or table in the paper's LaTeX, or "ours".
        title: in words.
        grid: its trainings at a preset.
        measure: of one trained surrogate and its test events, as JSON values.
        figure: drawn from the results alone.
        claims: of the paper, or ours.
        measure_data: of all events, where a study needs no training.
        tables: of the results alone, where a figure does not say it all.
    """

    name: str
    label: str
    title: str
    grid: Callable[[Preset], list[Case]]
    measure: Callable[[Surrogate, Events, Case], dict[str, Any]]
    figure: Callable[[Results], Figure]
    claims: tuple[Claim, ...]
    measure_data: Callable[[Events], dict[str, Any]] | None = None
    tables: Callable[[Results], list[Table]] = lambda _: []
