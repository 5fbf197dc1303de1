"""The audit against the truth: how many wrong amplitudes are found, and how many that are right are called wrong."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

import ampsure
from ampsure.config import Config, resolve
from ampsure.disturbances import Outliers

FACTOR = 10.0  # typical errors of the surrogate: what counts as wrong
GOAL = 0.95


@dataclass(frozen=True)
class Examined:
    """What an audit has found.

    Args:
        typical: error of the surrogates that it counts in.
        wrong: amplitudes that are off by more than ten times that.
        suspects: amplitudes that the audit calls wrong.
        found: of those that are.
        innocent: suspects that are off by less than the typical error itself.
    """

    typical: str
    wrong: int
    suspects: int
    found: int
    innocent: int

    @property
    def recall(self) -> float:
        return self.found / max(self.wrong, 1)

    @property
    def purity(self) -> float:
        return 1 - self.innocent / max(self.suspects, 1)


def examine(events: ampsure.Events, config: Config) -> list[Examined]:
    """Audit the events after a hundredth of their amplitudes was made wrong.

    The typical error is that of each event by itself, sigma_tot, or the same for all, the median of |Delta|.
    """
    damaged = Outliers()(events, seed=1)
    audit = ampsure.audit(damaged, config)
    error = np.abs(damaged.amplitude / events.truth - 1)
    suspect = np.zeros(len(events), dtype=bool)
    suspect[audit.suspects] = True
    everywhere = np.full(len(events), np.median(np.abs(audit.amplitude / events.truth - 1)))
    results = []
    for name, typical in (("sigma of the event", audit.sigma / audit.amplitude), ("median |Δ|", everywhere)):
        wrong = error > FACTOR * typical
        found, innocent = suspect & wrong, suspect & (error < typical)
        results.append(Examined(name, *(int(mask.sum()) for mask in (wrong, suspect, found, innocent))))
    return results


def main(n: int = 100_000) -> int:
    events = ampsure.generate("gg_yyg", n, seed=1, overweight=5e-3)
    size = {"network": {"hidden": (64, 64, 64)}}
    results = examine(events, resolve("recommended", "accurate", size, epochs=40, batch_size=512, seed=1))
    table = Table("typical error", "wrong", "found", "suspects", "not wrong", "recall", "purity", "")
    for r in results:
        good = min(r.recall, r.purity) >= GOAL
        counts = map(str, (r.wrong, r.found, r.suspects, r.innocent))
        table.add_row(r.typical, *counts, f"{r.recall:.1%}", f"{r.purity:.1%}", "ok" if good else "below the goal")
    Console(width=110).print(table)
    return int(min(results[0].recall, results[0].purity) < GOAL)


if __name__ == "__main__":
    sys.exit(main())
