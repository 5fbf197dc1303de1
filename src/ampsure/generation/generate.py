"""`generate`: events of a process with a known exact amplitude."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count
from math import ceil
from operator import index
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ampsure._version import versions
from ampsure.cluster import Cluster
from ampsure.errors import AmpsureError
from ampsure.events import COLUMNS, Events
from ampsure.memory import available_memory
from ampsure.processes import Process, get_process
from ampsure.threads import one_thread

from .phase_space import ChiliSpace, CrossSection, RamboSpace
from .sampler import NOTHING, FlatSampler, FlowSampler, Sampler, training_rounds
from .settings import get_settings
from .unweighting import maximum_weight, unweighting_efficiency

__all__ = ["GenerationSummary", "as_integer", "generate"]

TOO_UNEVEN = "The weights are too uneven to unweight: allow a larger overweight share, or take weighted events."

Floats = NDArray[np.float64]
Report = Callable[[str, float, float], None]
"""Told of progress: stage, done, total."""
Pool = ThreadPoolExecutor | Cluster
Function = TypeVar("Function", bound=Callable[..., Any])

_BATCH = 20_000
_PILOT = (20_000, 200_000)  # points, at least and at most
_SMALLEST_EFFICIENCY = 1e-4


@dataclass(frozen=True)
class GenerationSummary:
    """What a generation found out; kept in `Events.provenance["generation"]`.

    Args:
        cross_section, cross_section_error: in pb.
        cut_efficiency: share of points inside the cuts.
        unweighting_efficiency: share of points that became events; 1 for weighted events.
        overweight_share: share of the cross section in the excess weight of overweight events.
        effective_size: Kish's effective number of events.
    """

    cross_section: float
    cross_section_error: float
    points: int
    cut_efficiency: float
    unweighting_efficiency: float
    overweight_share: float
    effective_size: float
    seconds: float


def generate(
    process: str | Process = "gg_yyg",
    n: int = 100_000,
    *,
    preset: str = "benchmark",
    seed: int = 1,
    sampling: str = "adaptive",
    unweight: bool = True,
    overweight: float = 1e-3,
    workers: int | None = None,
    cluster: Cluster | None = None,
    report: Report | None = None,
    **overrides: Any,
) -> Events:
    """Events distributed as the cross section, with exact amplitudes.

    Args:
        n: number of events.
        preset: "benchmark" or "lhc"; `overrides` changes single settings of `Settings`, e.g. `energy=13000`.
        seed: the same seed gives the same events, whatever the number of workers and wherever they are.
        sampling: "adaptive" (a trained flow), or "rambo" (flat phase space, weighted events).
        unweight: unweight the events; weighted events have weights of mean one.
        overweight: share of the cross section that may lie in the excess weight of overweight events. These events keep
            their excess in `weights`.
        workers: threads; by default all cores.
        cluster: where to compute amplitudes instead of here, see `ampsure.cluster.connect`.
        report: called with (stage, done, total).

    >>> events = generate("gg_yyg", 50, seed=1, sampling="rambo")
    >>> events.momenta.shape
    (50, 5, 4)
    """
    n, seed = as_integer(n, "number of events"), as_integer(seed, "seed")
    if n < 1:
        raise AmpsureError(f"The number of events must be positive, not {n}.")
    if not 0 <= seed < 2**63:
        raise AmpsureError(f"The seed must be a non-negative integer below 2^63, not {seed}.")
    if workers is not None and workers < 1:
        raise AmpsureError(f"The number of workers must be positive, not {workers}.")
    if workers is not None and cluster is not None:
        raise AmpsureError("On a cluster there are no threads: leave out the number of workers.")
    if sampling not in ("adaptive", "rambo"):
        raise AmpsureError(f"Unknown sampling {sampling!r}; known are 'adaptive' and 'rambo'.")
    if not 0 < overweight < 1:
        raise AmpsureError(f"The overweight share must lie between 0 and 1, not {overweight}.")
    process = get_process(process) if isinstance(process, str) else process
    if process.exact is None:
        raise AmpsureError(f"No exact amplitude is known for process {process.name!r}, so it cannot be generated.")
    if (size := 8 * n * (4 * process.n_legs + len(COLUMNS))) > available_memory():
        raise AmpsureError(
            f"{n:,} events take {size / 2**30:,.0f} GiB, more than there is memory: generate parts of them, each with"
            " a seed of its own, and append these to one file (ampsure.io.appending)."
        )
    settings = get_settings(preset, **overrides)
    if "identical" in settings.couplings:
        raise AmpsureError("The factor for identical particles is part of the cross section: leave out 'identical'.")
    if unknown := set(settings.couplings) - set(process.options):
        known = ", ".join(process.options) or "none"
        raise AmpsureError(
            f"The amplitude of {process.name!r} has no option {min(unknown)!r}; its options are: {known}."
        )
    if sampling == "adaptive" and settings.density is None:
        raise AmpsureError("Adaptive sampling needs a parton density; without one, use sampling 'rambo'.")
    started = time.monotonic()
    space = ChiliSpace(process, settings) if sampling == "adaptive" else RamboSpace(process, settings)
    cross_section = CrossSection(process, settings, space)
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        pool = cluster or stack.enter_context(ThreadPoolExecutor(workers or os.cpu_count() or 1))
        generation = _Generation(cross_section, pool, report or (lambda *_: None), seed, n)
        if sampling == "rambo":
            arrays, found = generation.weighted(FlatSampler(cross_section))
        else:
            sampler = generation.adapted()
            arrays, found = generation.unweighted(sampler, overweight) if unweight else generation.weighted(sampler)
    summary = GenerationSummary(**found, seconds=time.monotonic() - started)
    momenta, amplitude, weights = arrays
    provenance = {
        "command": {"name": "generate", "process": process.name, "n": n, "preset": preset, "seed": seed}
        | {"sampling": sampling, "unweight": unweight and sampling != "rambo", "overweight": overweight},
        "settings": settings.model_dump(mode="json"),
        "amplitude_options": process.options | settings.couplings,
        "versions": versions(),
        "generation": asdict(summary),
    }
    return Events(momenta, amplitude, process, weights=weights, provenance=provenance)


def as_integer(value: int, name: str) -> int:
    """The value if it is an integer of any kind; `name` says in the error what it is."""
    try:
        return index(value)
    except TypeError as error:
        raise AmpsureError(f"The {name} must be an integer, not {value!r}.") from error


@dataclass(frozen=True)
class _Batch:
    """Weights (N,) of all points; of the M kept ones momenta, amplitude, weight and a uniform number."""

    weights: Floats
    momenta: Floats
    amplitude: Floats
    kept: Floats
    uniform: Floats


@dataclass(frozen=True)
class _Draw:
    """Computes batches by number, each from a random stream of its own, without what unweighting by `floor` rejects."""

    cross_section: CrossSection
    sampler: Sampler
    seed: int
    stream: int
    size: int
    floor: float

    def __call__(self, number: int) -> _Batch:
        rng = np.random.default_rng([self.seed, self.stream, number])
        points, inverse_density = self.sampler.draw(self.size, rng)
        weights, momenta, amplitude = self.cross_section(points)
        weights = weights * inverse_density
        positive = weights[weights > 0]
        uniform = rng.random(len(positive))
        keep = uniform * self.floor < positive
        return _Batch(weights, momenta[keep], amplitude[keep], positive[keep], uniform[keep])


def _weights(cross_section: CrossSection, points: Floats) -> Floats:
    return cross_section(points)[0]


Arrays = tuple[Floats, Floats, Floats]  # momenta, amplitude, weights


class _Generation:
    """Batches are numbered and draw from streams of their own: results depend on the seed, not on who computes."""

    def __init__(self, cross_section: CrossSection, pool: Pool, report: Report, seed: int, n_events: int) -> None:
        self._cross_section, self._pool, self._report = cross_section, pool, report
        self._seed, self._n = seed, n_events

    def adapted(self) -> FlowSampler:
        """A flow trained on the cross section."""
        sampler = FlowSampler(self._cross_section, self._seed)
        rounds = training_rounds(self._n)
        self._report("adapting", 0, sum(rounds))
        for done in sampler.adapt(rounds, self._evaluate):
            self._report("adapting", done, sum(rounds))
        return sampler

    def _evaluate(self, points: Floats) -> Floats:
        parts = np.array_split(points, max(1, len(points) // 4096))
        cross_section = self._shared(self._cross_section)
        futures = [self._pool.submit(_weights, cross_section, part) for part in parts]
        return np.concatenate([future.result() for future in futures])

    def _shared(self, function: Function) -> Function:
        return self._pool.share(function) if isinstance(self._pool, Cluster) else function

    def _batches(
        self, sampler: Sampler, stream: int, size: int, floor: float = 0.0, numbers: Iterable[int] | None = None
    ) -> Iterator[_Batch]:
        """Batches in the order of their numbers, computed ahead by the pool."""
        draw = self._shared(_Draw(self._cross_section, sampler, self._seed, stream, size, floor))
        ahead: deque[Any] = deque()
        try:
            for number in count() if numbers is None else numbers:
                ahead.append(self._pool.submit(draw, number))
                if len(ahead) >= (2 * self._pool.slots if isinstance(self._pool, Cluster) else 4):
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()

    def weighted(self, sampler: Sampler) -> tuple[Arrays, dict[str, Any]]:
        """The first n points inside the cuts, with their weights."""
        tally, parts, found = _Tally(), [], 0
        for batch in self._batches(sampler, stream=2, size=min(_BATCH, max(2000, 2 * self._n))):
            tally.add(batch.weights)
            parts.append((batch.momenta, batch.amplitude, batch.kept))
            found += len(batch.kept)
            self._report("generating weighted events", min(found, self._n), self._n)
            if found >= self._n:
                break
            if tally.points > 1000 * (found + 1000):
                raise AmpsureError(NOTHING)
        momenta, amplitude, weights = (np.concatenate(arrays)[: self._n] for arrays in zip(*parts, strict=True))
        weights = weights / weights.mean()
        kish = float(weights.sum() ** 2 / np.square(weights).sum())
        summary = tally.summary() | {"unweighting_efficiency": 1.0, "overweight_share": 0.0, "effective_size": kish}
        return (momenta, amplitude, weights), summary

    def unweighted(self, sampler: Sampler, share: float) -> tuple[Arrays, dict[str, Any]]:
        """n events of weight one, but for the excess of overweight ones.

        The maximum is fixed at the end, from all weights seen, so that the overweight share is the one asked for. Until
        then points are kept by a third of the maximum of a pilot run, with their uniform number; the final choice among
        them compares the same number with the final maximum.
        """
        size = min(_BATCH, max(2000, 5 * self._n))
        started = time.monotonic()
        points = min(max(5 * self._n, _PILOT[0]), _PILOT[1])
        batches = self._batches(sampler, stream=3, size=size, numbers=range(ceil(points / size)))
        pilot = np.concatenate([batch.weights for batch in batches])
        if not pilot.any():
            raise AmpsureError(NOTHING)
        floor = maximum_weight(pilot, share * pilot.sum()) / 3
        per_batch = size * unweighting_efficiency(pilot, 3 * floor)
        if per_batch < _SMALLEST_EFFICIENCY * size:
            raise AmpsureError(TOO_UNEVEN)
        planned = ceil(1.01 * self._n / per_batch) + 1
        stage = f"unweighting (about {(time.monotonic() - started) / len(pilot) * planned * size:.0f} s)"

        # Whether to go on is asked only after a planned number of batches: asking after each would favour lucky ends.
        tally, large, kept, most = _Tally(), [], [], 100 * planned
        for number, batch in enumerate(self._batches(sampler, 2, size, floor), start=1):
            tally.add(batch.weights)
            large.append(batch.weights[batch.weights > floor])
            kept.append((batch.momenta, batch.amplitude, batch.kept, batch.uniform))
            self._report(stage, self._n * number / planned, self._n)
            if number < planned:
                continue
            maximum = max(floor, maximum_weight(np.concatenate(large), share * tally.total))
            accepted = sum(int((uniform * maximum < weight).sum()) for _, _, weight, uniform in kept)
            if accepted >= self._n:
                break
            planned += ceil((self._n - accepted) * number / max(accepted, 1)) + 1
            if planned > most:
                raise AmpsureError(TOO_UNEVEN)
        momenta, amplitude, weight, uniform = (np.concatenate(arrays) for arrays in zip(*kept, strict=True))
        chosen = np.flatnonzero(uniform * maximum < weight)[: self._n]
        weights = np.maximum(weight[chosen] / maximum, 1.0)
        excess = np.maximum(np.concatenate(large) - maximum, 0).sum()
        summary = tally.summary() | {
            "unweighting_efficiency": float((tally.total - excess) / maximum / tally.points),
            "overweight_share": float(excess / tally.total),
            "effective_size": float(weights.sum() ** 2 / np.square(weights).sum()),
        }
        return (momenta[chosen], amplitude[chosen], weights), summary


class _Tally:
    """Running cross section."""

    def __init__(self) -> None:
        self.points, self.inside = 0, 0
        self.total, self._squares = 0.0, 0.0

    def add(self, weights: Floats) -> None:
        self.points += len(weights)
        self.inside += int(np.count_nonzero(weights))
        self.total += float(weights.sum())
        self._squares += float(np.square(weights).sum())

    def summary(self) -> dict[str, Any]:
        mean = self.total / self.points
        variance = max(self._squares / self.points - mean**2, 0.0)
        return {
            "cross_section": mean,
            "cross_section_error": float(np.sqrt(variance / max(self.points - 1, 1))),
            "points": self.points,
            "cut_efficiency": self.inside / self.points,
        }
