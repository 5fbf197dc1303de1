"""Cross sections of g g > a a g against values from independent integrations: one line a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import hypot

from rich.console import Console
from rich.table import Table

import ampsure

# Integrations with other codes around the same amplitude: plain RAMBO with two million points, and Chili with VEGAS.
REFERENCES = {
    ("1 TeV, GRV94 LO", "RAMBO"): (9.07e-4, 0.05e-4),
    ("1 TeV, GRV94 LO", "Chili + VEGAS"): (9.055e-4, 0.018e-4),
    ("13 TeV, GRV94 LO", "RAMBO"): (1.090, 0.007),
}
SETTINGS = {
    "1 TeV, GRV94 LO": {"preset": "benchmark"},
    "13 TeV, GRV94 LO": {"preset": "lhc", "density": "grv94lo"},
}


@dataclass(frozen=True)
class Comparison:
    """A cross section in pb, found and expected, each with its standard error."""

    run: str
    reference: str
    found: tuple[float, float]
    expected: tuple[float, float]

    @property
    def pull(self) -> float:
        return (self.found[0] - self.expected[0]) / hypot(self.found[1], self.expected[1])


def compare(n: int, seeds: tuple[int, ...] = (1, 2)) -> Iterator[Comparison]:
    """Unweighted, weighted and flat samples of n events, each seed against every reference of its settings."""
    modes = {"unweighted": {}, "weighted": {"unweight": False}, "flat": {"sampling": "rambo"}}
    for settings, options in SETTINGS.items():
        for mode, how in modes.items():
            for seed in seeds:
                events = ampsure.generate("gg_yyg", n, seed=seed, **options, **how)
                generation = events.provenance["generation"]
                found = generation["cross_section"], generation["cross_section_error"]
                for (of, reference), expected in REFERENCES.items():
                    if of == settings:
                        yield Comparison(f"{settings}, {mode}, seed {seed}", reference, found, expected)


def main(n: int = 20_000) -> int:
    table = Table("run", "cross section / pb", "reference", "its value / pb", "pull", "", title=f"{n:,} events each")
    failed = False
    for c in compare(n):
        good = abs(c.pull) < 3
        failed |= not good
        found, expected = (f"{value:.5g} ± {error:.2g}" for value, error in (c.found, c.expected))
        table.add_row(c.run, found, c.reference, expected, f"{c.pull:+.2f}", "ok" if good else "FAIL")
    Console(width=140).print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
