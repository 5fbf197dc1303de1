"""How large a study is: a check of the machinery, a night on a laptop, an hour on a GPU, or the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ampsure.config import RECIPES, Config, resolve

__all__ = ["PRESETS", "Preset"]


@dataclass(frozen=True)
class Preset:
    """Sizes common to all studies.

    Args:
        events: in the data set.
        recipe: features, optimiser and schedule.
        hidden, batch_size, epochs: of an ordinary training.
        members: of an ordinary ensemble.
        ensembles: numbers of members where a study compares them.
        runs: repetitions with other seeds.
    """

    name: str
    events: int
    recipe: str
    hidden: tuple[int, ...]
    batch_size: int
    epochs: int
    members: int
    ensembles: tuple[int, ...]
    runs: int

    def config(self, method: str, *overrides: Mapping[str, Any], run: int = 0, **training: Any) -> Config:
        """The configuration of a method at this size; `run` is its seed."""
        rate = RECIPES[self.recipe]["training"]["learning_rate"]  # the same for all methods, as in the paper
        size: dict[str, dict[str, Any]] = {
            "network": {"hidden": self.hidden},
            "training": {"batch_size": self.batch_size, "epochs": self.epochs, "learning_rate": rate},
        }
        if method in ("repulsive", "repulsive-global", "mixture"):
            size["posterior"] = {"members": self.members}
        return resolve(method, self.recipe, size, *overrides, **{"seed": run, **training})


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("smoke", 4000, "accurate", (24, 24), 128, 10, 3, (1, 2, 4), 2),
        Preset("laptop", 100_000, "accurate", (64, 64, 64), 512, 40, 4, (1, 2, 4, 8, 16, 32), 3),
        Preset("full", 1_100_000, "accurate", (128,) * 6, 4096, 30, 8, (1, 2, 4, 8, 16, 32, 64, 128), 3),
        Preset("paper-short", 1_100_000, "paper", (128,) * 6, 1024, 100, 8, (1, 2, 4, 8, 16, 32, 64, 128), 3),
        Preset("paper", 1_100_000, "paper", (128,) * 6, 1024, 1000, 32, (1, 2, 4, 8, 16, 32, 64, 128), 5),
    )
}
