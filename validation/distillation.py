"""What distillation costs: students of an ensemble against their teacher, on events neither has seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

import ampsure
from ampsure.deploy import distill
from ampsure.evaluation import pull_tot, summarise_pull
from ampsure.prediction import Prediction

EPOCHS = 60
"""Of the teacher."""


@dataclass(frozen=True)
class Price:
    """Of one surrogate.

    Args:
        deviation: median of |A/A_exact - 1|.
        sigma: median of sigma_tot/A.
        coverage: share of total pulls within one sigma.
        syst, stat: medians of sigma_syst and sigma_stat over those of the teacher.
    """

    name: str
    deviation: float
    sigma: float
    coverage: float
    syst: float = 1.0
    stat: float = 1.0


def prices(events: ampsure.Events, test: ampsure.Events, students: tuple[int, ...]) -> Iterator[Price]:
    """A teacher and its students, which are trained for so many epochs."""
    config = {"network": {"hidden": (64, 64)}, "posterior": {"members": 4}}
    teacher = ampsure.fit(events, "repulsive", config=config, epochs=EPOCHS, batch_size=128, seed=1)
    known = teacher.predict(test.momenta)

    def price(name: str, p: Prediction) -> Price:
        pull = summarise_pull(pull_tot(p.amplitude, p.sigma_tot, test.truth))
        deviation, sigma = np.abs(p.amplitude / test.truth - 1), p.sigma_tot / p.amplitude
        ratios = (np.median(p.sigma_syst / known.sigma_syst), np.median(p.sigma_stat / known.sigma_stat))
        return Price(name, *map(float, (np.median(deviation), np.median(sigma), pull.coverage68, *ratios)))

    yield price("teacher", known)
    for epochs in students:
        yield price(f"student, {epochs} epochs", distill(teacher, events, epochs=epochs).predict(test.momenta))


def main(n: int = 5000) -> None:
    events, test = (ampsure.generate("gg_yyg", size, seed=seed) for size, seed in ((n, 1), (2000, 2)))
    columns = ("", "median |Δ|", "median sigma_tot/A", "68 %", "sigma_syst over teacher's", "sigma_stat over teacher's")
    table = Table(*columns, title=f"Ensembles of 4 from {n:,} events, {EPOCHS} epochs")
    for p in prices(events, test, (60, 100, 150)):
        table.add_row(
            p.name, f"{p.deviation:.1e}", f"{p.sigma:.1e}", f"{p.coverage:.1%}", f"{p.syst:.2f}", f"{p.stat:.2f}"
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
