"""A mixture of evidential components."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ampsure.errors import AmpsureError

from .base import bounded
from .evidential import constrained_log_v, log_scale_squared, student_t_nll, student_t_slope
from .mixture import Mixture

__all__ = ["EvidentialMixture"]


@dataclass
class EvidentialMixture(Mixture):
    r"""K constrained Student-t components with learned weights, eq. (loss_gmm_evidential) of the paper.

    Outputs: K times gamma, K times log sigma_syst^2, K times log(alpha - 1), K logits of the weights, with the bounds
    of `Evidential`. The spread of the components counts as systematic. The prediction is the highest mode.

    >>> out = torch.tensor([[[0.0, 2.0, 0.0, 0.0, 3.0, 3.0, 0.0, 0.0]]])
    >>> EvidentialMixture(k=2).variance_syst(out), EvidentialMixture(k=2).variance_stat(out)
    (tensor([[2.]]), tensor([[0.0237]]))
    """

    name = "evidential_mixture"
    r: float = 1.0
    _outputs_each = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.r < math.inf:
            raise AmpsureError(f"The ratio r of an evidential likelihood must be positive, not {self.r}.")

    def variance_stat(self, out: Tensor) -> Tensor:
        _, log_var, log_excess, _ = self._split(out)
        return self._average(out, torch.exp(bounded(log_var) - constrained_log_v(bounded(log_excess, 25), self.r)))

    def component_nll(self, out: Tensor, y: Tensor) -> Tensor:
        return student_t_nll(y[..., None] - self._split(out)[0], *self._scale_and_excess(out))

    def component_slope(self, out: Tensor, y: Tensor) -> Tensor:
        return student_t_slope(y[..., None] - self._split(out)[0], *self._scale_and_excess(out))

    def component_scale(self, out: Tensor) -> Tensor:
        return torch.exp(0.5 * self._scale_and_excess(out)[0])

    def _scale_and_excess(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """log squared scale and log(alpha - 1) of the Student-t components, each (E, B, K)."""
        _, log_var, log_excess, _ = self._split(out)
        log_excess = bounded(log_excess, 25)
        log_v = constrained_log_v(log_excess, self.r)
        return log_scale_squared(bounded(log_var), log_excess, log_v), log_excess
