"""Speed and efficiency of event generation; with --full, the 1.1 million events of the benchmark."""

from __future__ import annotations

import argparse
import os

from rich.console import Console
from rich.table import Table

import ampsure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="1.1 million events at 0.1 %% overweight as well")
    arguments = parser.parse_args()
    runs = [(100_000, 5e-3), (100_000, 1e-3)] + ([(1_100_000, 1e-3)] if arguments.full else [])
    columns = ("events", "overweight share", "unweighting efficiency", "effective size", "seconds", "us an event")
    table = Table(*columns, title=f"g g > a a g, preset benchmark, {os.cpu_count()} cores")
    for n, share in runs:
        found = ampsure.generate("gg_yyg", n, seed=1, overweight=share).provenance["generation"]
        numbers = (
            f"{found['unweighting_efficiency']:.1%}",
            f"{found['effective_size']:,.0f}",
            f"{found['seconds']:.0f}",
        )
        table.add_row(f"{n:,}", f"{found['overweight_share']:.2%}", *numbers, f"{found['seconds'] / n * 1e6:.0f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
