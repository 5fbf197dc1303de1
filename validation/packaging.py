"""The wheel in empty environments: without extras, and with each extra alone. `make check-dist` runs this."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRAIN = ["--set", "network.hidden=[16,16]", "--set", "training.epochs=2", "--set", "training.batch_size=256"]

WITHOUT = [
    ["--help"],
    ["generate", "gg_yyg", "-n", "1000", "--seed", "1", "-o", "events.h5"],
    ["train", "--data", "events.h5", "-o", "run", *TRAIN],
    ["evaluate", "run"],
    ["predict", "run", "events.h5", "-o", "out.npz"],
    ["report", "run"],
]
EXTRAS = {
    "lhe": [["convert", "events.h5", "events.lhe.gz"], ["inspect", "events.lhe.gz"]],
    "export": [["export", "run", "--format", "onnx", "-o", "a.onnx"]],
    "dask": [["generate", "gg_yyg", "-n", "500", "--cluster", "local", "--workers", "1", "-o", "cluster.h5"]],
}
"""What each extra is for."""


class Environment:
    """An environment with nothing but the wheel, or the wheel with an extra, and what they need."""

    def __init__(self, folder: Path, wheel: Path, extra: str | None = None) -> None:
        venv.create(folder, with_pip=True)
        self.bin = folder / "bin"
        install = [self.bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install += ["-c", ROOT / "constraints.txt"]
        subprocess.run([*install, "torch"], check=True)
        subprocess.run([*install, f"{wheel}[{extra}]" if extra else wheel], check=True)

    def ampsure(self, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command in a folder, with nothing of this repository in reach."""
        outside = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        return subprocess.run(
            [self.bin / "ampsure", *arguments], cwd=folder, env=outside, capture_output=True, text=True
        )


def expect(done: subprocess.CompletedProcess[str], what: str, code: int = 0, words: str = "") -> None:
    """Print what was done, and stop if it went another way."""
    right = done.returncode == code and " ".join(words.split()) in " ".join(done.stderr.split())
    print(f"{'ok  ' if right else 'FAIL'} {what}", flush=True)
    if not right:
        sys.exit(f"exit code {done.returncode}, expected {code}\n{done.stdout}\n{done.stderr}")


def main(wheel: Path) -> None:
    """All of it, in environments that are removed afterwards."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        plain = Environment(top / "plain", wheel)
        for arguments in WITHOUT:
            expect(plain.ampsure(arguments, top), f"without extras: ampsure {' '.join(arguments)}")
        for extra, commands in EXTRAS.items():
            sentence = f"pip install 'ampsure[{extra}]'"
            expect(plain.ampsure(commands[0], top), f"without {extra}: {sentence}", code=2, words=sentence)
        for extra, commands in EXTRAS.items():
            environment = Environment(top / extra, wheel, extra)
            for arguments in commands:
                expect(environment.ampsure(arguments, top), f"with {extra} alone: ampsure {' '.join(arguments)}")


if __name__ == "__main__":
    (found,) = (ROOT / "dist").glob("*.whl")
    main(found.resolve())
