"""Adaptive importance sampling: a normalizing flow of madspace, trained on the cross section itself.

The flow (rational-quadratic splines, Durkan et al., arXiv:1906.04032) learns the density of the random numbers by
maximum likelihood with importance weights, as in MadNIS (Heimel et al., arXiv:2212.06172). Exact symmetries are taken
out first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampsure.errors import AmpsureError

from .phase_space import ChiliSpace, CrossSection

NOTHING = "No point has a positive cross section: loosen the cuts, raise the energy, or check the couplings."

__all__ = ["FlatSampler", "FlowSampler", "Sampler", "training_rounds"]

Floats = NDArray[np.float64]

_BATCH = 1024
_PASSES = 2  # over the points of a round
_LEARNING_RATE = 1e-2
_AVERAGING = 0.99  # of the flow's weights over steps: the average has far fewer overweight events
_ROUNDS = (20_000, 40_000, 80_000, 100_000)
_MAX_POINTS = 740_000


def training_rounds(n_events: int) -> list[int]:
    """Points of every round of adaptation: more for larger samples, until more does not pay.

    >>> training_rounds(20_000)
    [20000, 40000, 80000]
    """
    budget, rounds = min(6 * n_events, _MAX_POINTS), [_ROUNDS[0]]
    while (
        sum(rounds) + (size := _ROUNDS[min(len(rounds), len(_ROUNDS) - 1)]) <= max(budget, sum(_ROUNDS[:2])) + size // 2
    ):
        rounds.append(size)
    return rounds


class FlatSampler:
    """Uniform random numbers."""

    def __init__(self, cross_section: CrossSection) -> None:
        self._dimension = cross_section.space.dimension

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Points of the unit cube (n, dimension) and their inverse density (n,)."""
        return rng.random((n, self._dimension)), np.ones(n)


class FlowSampler:
    """Random numbers distributed nearly as the cross section.

    Args:
        seed: of the flow's first weights and of the training.
        rounding: relative difference of mirrored points that is taken for rounding. The points are distributed as they
            say whether or not the cross section is symmetric.
    """

    def __init__(self, cross_section: CrossSection, seed: int, rounding: float = 1e-9) -> None:
        import madspace
        import madspace.torch

        self._cross_section = cross_section
        self._dimension = cross_section.space.dimension
        self._seed, self._rounding = seed, rounding
        free = set(range(self._dimension))
        self._mirrors: list[slice] = []
        if isinstance(space := cross_section.space, ChiliSpace):
            free -= {space.overall_azimuth}
            reflections = [where for where in (space.rapidities, space.azimuths) if where.start < where.stop]
            self._mirrors = [where for where in reflections if self._is_symmetric(where)]
        self._learned = sorted(free)
        context = madspace.Context(1)
        flow = madspace.Flow(len(self._learned), prefix="flow", bin_count=10, subnet_hidden_dim=32, subnet_layers=3)
        flow.initialize_globals(context, seed=seed)
        self._forward = madspace.FunctionRuntime(flow.forward_function(), context)
        self._inverse = madspace.torch.FunctionModule(flow.inverse_function(), context)
        self._parameters = [p for p in self._inverse.parameters() if p.requires_grad]  # shared with the context

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again in another process, where it takes over the weights of the flow."""
        weights = [p.detach().numpy() for p in self._parameters]
        return _sampler, (self._cross_section, self._seed, self._rounding, weights)

    def _is_symmetric(self, where: slice) -> bool:
        """Whether the cross section is unchanged by the reflection of these random numbers."""
        random = np.random.default_rng(0).random((256, self._dimension))
        mirrored = random.copy()
        mirrored[:, where] = 1 - random[:, where]
        there, mirrored = (self._cross_section(points)[0] for points in (random, mirrored))
        return np.allclose(there, mirrored, rtol=self._rounding, atol=0)

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Points of the unit cube (n, dimension) and their inverse density (n,)."""
        _, points, inverse_density = self._draw(n, rng)
        return points, inverse_density

    def _draw(self, n: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        latent = rng.random((n, len(self._learned)))
        learned, inverse_density = (output.numpy() for output in self._forward.call([latent]))
        points = rng.random((n, self._dimension))
        points[:, self._learned] = learned
        for where in self._mirrors:  # the flow lives on one half; the other is its mirror image
            points[:, where.start] /= 2
            flipped = rng.random(n) < 0.5
            points[flipped, where] = 1 - points[flipped, where]
        return learned, points, inverse_density

    def adapt(self, rounds: list[int], evaluate: Callable[[Floats], Floats]) -> Iterator[int]:
        """Train the flow, round by round; yields the number of points used so far.

        Args:
            rounds: points drawn anew for every round.
            evaluate: random numbers (N, dimension) -> cross-section weights (N,).
        """
        rng = np.random.default_rng([self._seed, 1])
        steps = sum(_PASSES * (n // _BATCH) for n in rounds)
        optimizer = torch.optim.Adam(self._parameters, lr=_LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps + 1, pct_start=0.2)
        trained = [p.detach().clone() for p in self._parameters]
        average, step, done = [p.clone() for p in trained], 0, 0
        for n in rounds:
            learned, points, inverse_density = self._draw(n, rng)
            weights = evaluate(points) * inverse_density
            if not weights.any():
                raise AmpsureError(NOTHING)
            keep = np.flatnonzero(weights)
            x, w = torch.from_numpy(learned[keep]), torch.from_numpy(weights[keep] / weights.mean())
            self._load(trained)
            for _ in range(_PASSES):
                order = torch.from_numpy(rng.permutation(len(keep)))
                for batch in order.split(_BATCH)[: n // _BATCH]:
                    self._step(optimizer, x[batch], w[batch])
                    schedule.step()
                    step += 1
                    for mean, parameter in zip(average, self._parameters, strict=True):
                        mean.lerp_(parameter.detach(), 1 - min(_AVERAGING, step / (10 + step)))
            trained = [p.detach().clone() for p in self._parameters]
            self._load(average)
            done += n
            yield done

    def _step(self, optimizer: torch.optim.Optimizer, x: Tensor, weight: Tensor) -> None:
        _, density = self._inverse(x)
        loss = -(weight * torch.log(density)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        optimizer.step()

    def _load(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._parameters, values, strict=True):
                parameter.copy_(value)


def _sampler(cross_section: CrossSection, seed: int, rounding: float, weights: list[Floats]) -> FlowSampler:
    sampler = FlowSampler(cross_section, seed, rounding)
    sampler._load([torch.from_numpy(values.copy()) for values in weights])
    return sampler


Sampler = FlatSampler | FlowSampler
