"""Adam for members side by side, each with a learning rate of its own."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Adam"]


class Adam:
    """Adam on weights (E, P), their gradient in `weights.grad`; equal to `torch.optim.Adam` for every member alone.

    The fused step of PyTorch knows one learning rate for all. Where members have their own, it is taken from zero with
    rate one, and the direction found so is followed by each at its rate. State is updated in place, for CUDA graphs.

    Args:
        weight_decay: times the weights, added to the gradient.
        decoupled: add it to the direction instead, as AdamW does.
        one_rate: all members have the same learning rate.
    """

    def __init__(
        self,
        weights: Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        one_rate: bool = False,
    ) -> None:
        self._weights, self._betas, self._eps = weights, betas, eps
        self._decay, self._decoupled = weight_decay, decoupled
        exact = weights.dtype == torch.float32  # a rate on the device is read in this precision
        self._direct = one_rate and exact and not (weight_decay and decoupled)
        self._direction = weights if self._direct else torch.zeros_like(weights)  # (E, P)
        self._state = {"exp_avg": torch.zeros_like(weights), "exp_avg_sq": torch.zeros_like(weights)}
        self._state["step"] = torch.zeros((), device=weights.device)
        # The fused kernel gives 65536 elements to a block: cut into 32 pieces, a small stack keeps more of them busy.
        self._piece = -(-weights.numel() // 32) if weights.numel() < 32 * 65536 else weights.numel()

    @torch.no_grad()
    def update(self, rate: Tensor) -> None:
        """One step with learning rates (E,)."""
        gradient, direction, state = self._weights.grad, self._direction, self._state
        assert gradient is not None
        if self._decay and not self._decoupled:
            gradient = gradient.add(self._weights, alpha=self._decay)
        state["step"].add_(1)
        if not self._direct:
            direction.zero_()
        flat = (direction, gradient, state["exp_avg"], state["exp_avg_sq"])
        moved, gradients, averages, squares = ([*tensor.view(-1).split(self._piece)] for tensor in flat)
        torch._fused_adam_(
            moved,
            gradients,
            averages,
            squares,
            [],
            [state["step"]] * len(moved),
            lr=rate[0] if self._direct else 1.0,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )
        if self._direct:
            return
        if self._decay and self._decoupled:
            direction.sub_(self._weights, alpha=self._decay)
        self._weights.addcmul_(direction, rate.to(direction.dtype)[:, None])

    def reach(self) -> int:
        """Updates that may follow each other before `advance`: any number."""
        return 2**62

    def advance(self, steps: int = 1) -> bool:
        """Counts finished updates; False: nothing has to be done between them."""
        return False

    def state_dict(self) -> dict[str, Tensor]:
        return self._state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, value in state.items():
            self._state[name].copy_(value)
