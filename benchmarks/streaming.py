"""Data larger than memory: speed of training from a file next to that in memory, and a campaign with a cap on memory.

The events of the campaign are fewer exact ones, repeated: nothing new to learn from, but as many to read, to shuffle
and to train on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import ampsure
from ampsure.config import TrainingConfig
from ampsure.io import replacing
from ampsure.io.hdf5 import Writer
from ampsure.likelihoods import get_likelihood
from ampsure.networks import StackedMLP
from ampsure.posteriors import Point
from ampsure.scratch import Scratch
from ampsure.training import Engine, Training, TrainingData

LIMIT = 4.0  # GiB, of every command of the campaign
SETTINGS = ("network.hidden=[16,16]", "posterior.members=2", "training.epochs=1", "training.batch_size=8192")

console = Console(width=120)


def throughput(
    n: int, window: int, hidden: tuple[int, ...], rounds: int, seconds: float, folder: Path
) -> list[tuple[float, float]]:
    """Events per second, and per second of all cores, in memory and from a file, in turn: two for every round."""
    rng = np.random.default_rng(0)
    raw = torch.from_numpy(rng.standard_normal((n, 11)))
    with Scratch.made(folder, window) as scratch:
        stored = scratch.write(raw.split(1 << 16), torch.device("cpu"))
        x = stored.lazily(lambda rows: ((rows[:, :-1] - 0.1) / 1.1).float())
        y = stored.lazily(lambda rows: rows[:, -1].float())
        held_out = x.host(0, 8192), y.host(0, 8192)
        in_memory = ((raw[:, :-1] - 0.1) / 1.1).float(), raw[:, -1].float()
        del raw
        engines = []
        for data in (in_memory, (x, y)):
            config = TrainingConfig(epochs=10_000, batch_size=1024, device="cpu")
            network = StackedMLP(10, 2, hidden=hidden)
            data = TrainingData(*data, *held_out)
            engines.append(Engine(Training(Point(network), get_likelihood("gaussian"), data, config)))
        found = []
        for _ in range(rounds + 1):
            for engine in engines:
                start, busy, first = time.perf_counter(), time.process_time(), engine.step
                while time.perf_counter() - start < seconds:
                    engine.advance()
                done = (engine.step - first) * 1024
                found.append((done / (time.perf_counter() - start), done / (time.process_time() - busy)))
        return found[2:]  # the first round warms up


def compare(options: argparse.Namespace, folder: Path) -> None:
    title = (
        f"{options.events:,} events, windows of {options.window:,}, batches of 1024, {torch.get_num_threads()} cores"
    )
    table = Table("network", "time", "in memory", "from a file", "ratio", "ratios of single rounds", title=title)
    for depth in (3, 6):
        found = throughput(options.events, options.window, (128,) * depth, options.rounds, options.seconds, folder)
        for k, clock in enumerate(("wall", "cores")):  # other programs disturb the second one less
            memory, file = ([speed[k] for speed in speeds] for speeds in (found[::2], found[1::2]))
            ratios = sorted(b / a for a, b in zip(memory, file, strict=True))
            speeds = (f"{median(values):,.0f} events/s" for values in (memory, file))
            span = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
            table.add_row(f"{depth}x128", clock, *speeds, f"{median(ratios):.3f}", span)
    console.print(table)


def make_events(path: Path, n: int, different: int) -> None:
    """Exact events, repeated: their compressed chunks are copied as they are."""
    events = ampsure.generate("gg_yyg", different, seed=1, sampling="rambo")
    with replacing(path) as temporary, Writer(temporary) as file:
        file.append(events)
        chunk = file.file["momenta"].chunks[0]
        copies, rest = divmod(n, different)
        if rest or different % chunk:
            raise SystemExit(f"Give a multiple of {different} events, and that a multiple of {chunk}.")
        for name in ("momenta", "amplitude", "weights"):
            dataset = file.file[name]
            dataset.resize(n, axis=0)
            further = (0,) * (dataset.ndim - 1)
            for start in range(0, different, chunk):
                _, data = dataset.id.read_direct_chunk((start, *further))
                for copy in range(1, copies):
                    dataset.id.write_direct_chunk((start + copy * different, *further), data)
        for _ in range(1, copies):
            file.count(events)


def campaign(options: argparse.Namespace, folder: Path) -> bool:
    """Makes a file, trains, evaluates and predicts; whether no command took more than the limit."""
    title = f"{', '.join(SETTINGS)}; limit {LIMIT} GiB"
    table = Table("events", "command", "seconds", "of all cores", "peak memory", title=title)
    inside = True
    for n in options.campaign:
        data, run = folder / f"{n}.h5", folder / f"run-{n}"
        module = [sys.executable, "-m", "benchmarks.streaming", "--make", str(data), "--events", str(n)]
        settings = [word for s in (*SETTINGS, "training.device=cpu", "data.memory=1") for word in ("--set", s)]
        command = [sys.executable, "-m", "ampsure"]
        for name, arguments in (
            *([] if data.exists() else [("make", module)]),
            ("train", [*command, "train", "--data", str(data), "-o", str(run), *settings]),
            ("evaluate", [*command, "evaluate", str(run)]),
            ("predict", [*command, "predict", str(run), str(data), "-o", str(folder / "out.h5")]),
        ):
            start = time.perf_counter()
            process = subprocess.Popen(arguments)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise SystemExit(f"{name} failed.")
            peak = usage.ru_maxrss / 2**20
            inside = inside and peak < LIMIT
            seconds = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
            table.add_row(f"{n:,}", name, *(f"{s:.0f}" for s in seconds), f"{peak:.2f} GiB")
        size = data.stat().st_size / 2**30
        table.add_row("", f"file {size:.2f} GiB, predictions {(folder / 'out.h5').stat().st_size / 2**30:.2f} GiB")
    console.print(table)
    console.print("PASS" if inside else "FAIL: a command took more memory than the limit")
    return inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--window", type=int, default=1 << 17, help="events in memory at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="time for every measurement")
    parser.add_argument("--campaign", nargs="*", type=int, help="numbers of events to train on, evaluate and predict")
    parser.add_argument("--make", type=Path, help="make a file of events, and nothing else")
    parser.add_argument("--folder", type=Path, help="for the files of the campaign, which stay there")
    options = parser.parse_args()
    if options.make:
        make_events(options.make, options.events, 81_920)
        return
    with TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if options.campaign is None:
            compare(options, folder)
        elif not campaign(options, folder):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
