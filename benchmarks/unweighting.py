"""Plain unweighting against two stages with a surrogate, for the exact amplitude as it is and as slow as NJet's."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ampsure
from ampsure.deploy import TwoStageSummary, adapted_sampler, distill, two_stage
from ampsure.generation import GenerationSummary, get_settings
from ampsure.generation.phase_space import ChiliSpace, CrossSection
from ampsure.generation.sampler import Sampler
from ampsure.generation.unweighting import maximum_weight, unweighting_efficiency
from ampsure.threads import one_thread

NJET = 0.589  # seconds a point
SEED = 4


def seconds(function: Callable[[Any], Any], argument: Any, repeat: int = 3) -> float:
    """Per row of the argument, the fastest of several runs."""
    best = np.inf
    for _ in range(repeat):
        started = time.perf_counter()
        function(argument)
        best = min(best, time.perf_counter() - started)
    return best / len(argument)


def plain_unweighting(cross_section: CrossSection, sampler: Sampler, n: int, share: float = 1e-3) -> GenerationSummary:
    """What rejection with exact amplitudes alone would give, on the points that give the two stages their maximum."""
    batches = [sampler.draw(20_000, np.random.default_rng([SEED, 4, k])) for k in range(max(n // 1000, 1))]
    weights = np.concatenate([cross_section(points)[0] * inverse_density for points, inverse_density in batches])
    maximum = maximum_weight(weights, share * weights.sum())
    x = weights / maximum
    kish = x.sum() ** 2 / (np.minimum(x, 1).sum() * (x * np.maximum(x, 1)).sum())
    inside, efficiency = float((weights > 0).mean()), unweighting_efficiency(weights, maximum)
    return GenerationSummary(weights.mean(), 0.0, len(weights), inside, efficiency, share, n * kish, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000, help="events to unweight")
    parser.add_argument("--training", type=int, default=10_000, help="events the surrogate learns from")
    arguments = parser.parse_args()
    n, console = arguments.events, Console(width=140)
    with one_thread():
        events = ampsure.generate("gg_yyg", arguments.training, seed=1)
        config = {"network": {"hidden": (64, 64, 64)}, "posterior": {"members": 4}}
        ensemble = ampsure.fit(events, "repulsive", config=config, epochs=60, batch_size=256, seed=1)
        student = distill(ensemble, events, epochs=100)
        process, settings = events.process, get_settings("benchmark")
        space = ChiliSpace(process, settings)
        t_phase_space = seconds(
            lambda r: settings.cuts.passed(space(r)[0], process),
            np.random.default_rng(0).random((10_000, space.dimension)),
        )
        momenta = events.momenta[:8000]
        t_exact = seconds(process.amplitude, momenta)
        sampler = adapted_sampler(ensemble, n, seed=3)
        summary = plain_unweighting(CrossSection(process, settings, space), sampler, n)
        console.print(f"phase space and cuts {1e6 * t_phase_space:.1f} us a point, exact {1e6 * t_exact:.0f} us")
        columns = ("unweighting", "us a point", "first stage", "second stage", "x_max", "surrogate / event")
        columns += ("exact / event", "Kish", "gain", f"gain at {NJET} s")
        table = Table(*columns, title=f"{n:,} events of g g > a a g, surrogate from {arguments.training:,}")
        exact = summary.cut_efficiency / summary.unweighting_efficiency
        inside = f"{1 / exact:.1%}"
        kish = f"{summary.effective_size / n:.4f}"
        table.add_row("plain", "", inside, "", "", "", f"{exact:.1f}", kish, "1", "1")
        for name, surrogate in (("ensemble of 4", ensemble), ("distilled", student)):
            t_surrogate = seconds(lambda p, s=surrogate: s.predict(p), momenta)
            for maximum in ("measured", "learned"):
                events = two_stage(surrogate, n, seed=SEED, maximum=maximum, sampler=sampler)
                found = TwoStageSummary(**events.provenance["two_stage"])
                gains = (
                    found.gain(summary, n, t_exact=t, t_surrogate=t_surrogate, t_phase_space=t_phase_space)
                    for t in (t_exact, NJET)
                )
                table.add_row(
                    f"{name}, {maximum}",
                    f"{1e6 * t_surrogate:.1f}",
                    f"{found.first_efficiency:.1%}",
                    f"{found.second_efficiency:.1%}",
                    f"{found.second_maximum:.4f}",
                    f"{found.surrogate_evaluations:.1f}",
                    f"{found.exact_evaluations:.4f}",
                    f"{found.effective_share:.4f}",
                    *(f"{gain:.3g}" for gain in gains),
                )
        console.print(table)
        console.print(f"The {arguments.training:,} exact amplitudes of the training are not counted.")


if __name__ == "__main__":
    main()
