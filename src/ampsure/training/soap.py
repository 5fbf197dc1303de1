r"""SOAP: Adam in the eigenbasis of Shampoo's factors, for stacked parameters.

Reference: Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam", arXiv:2409.11321. For the gradient G of
one weight matrix

    L = EMA[G G^T],  R = EMA[G^T G],  L ~ Q_L diag Q_L^T,  R ~ Q_R diag Q_R^T,
    M = EMA[G],      V = EMA[(Q_L^T G Q_R)^2],
    W <- W - lr Q_L [ Q_L^T M Q_R / (sqrt(V) + eps) ] Q_R^T,

M and V with Adam's bias correction. Every parameter here has a leading member axis, and no operation crosses it: a
member moves as it would alone. Matrices of one shape, of all members and layers, share each batched call.

What was decided where the paper leaves it open:

- The first step sets the basis up and leaves the matrices alone, as the authors' program does: in the basis made from
  the same gradient, that gradient is diagonal, and Adam would blow its rounding errors up to full steps. All other
  parameters take their first Adam step at once, so they follow `torch.optim.Adam` from the start.
- The basis is refreshed at the end of every 16th update (`precondition_every`), after the parameters have moved. The
  orthogonal iteration Q <- qr(L Q) is done by Cholesky's decomposition of the columns' scalar products, in float64 and
  with columns of unit length: a batched QR takes longer on a GPU than sixteen updates. By Cauchy and Schwarz the
  pivots are not smaller than the ratio of the eigenvalues, so nothing is lost.
- eps is added to the bias-corrected root, as `torch.optim.Adam` does; weight decay is decoupled, as in AdamW.
- A factor without full rank (always so in the first updates of a layer with few outputs) leaves the basis of its null
  space to rounding errors: no two machines, nor a member in and out of an ensemble, would agree. So the set-up adds a
  tiny diagonal with distinct entries, which prefers the axes, that is plain Adam, and each refresh a tiny multiple of
  the identity, which prefers the old basis. Both are relative to the trace and do not move eigenvectors above them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from ampsure.errors import AmpsureError

__all__ = ["SOAP"]

FACTORS = ("left", "right")
SET_UP_TILT = 1e-8  # the set-up is done in float64
REFRESH_SHIFT = {torch.float64: 1e-10}  # well above rounding, well below the eigenvalues that matter
REFRESH_SHIFT_OTHERWISE = 1e-6


@dataclass
class _Matrices:
    """All weight matrices of one shape: (E, in, out) each, (B, in, out) together, B the number of them times E."""

    params: list[Tensor]
    exp_avg: Tensor  # (B, in, out), original space
    exp_avg_sq: Tensor  # (B, in, out), rotated space
    factors: tuple[Tensor, Tensor]  # (B, in, in) and (B, out, out)
    bases: tuple[Tensor, Tensor]  # eigenvectors of the factors in columns, largest eigenvalue first

    def gather(self, tensors: list[Tensor]) -> Tensor:
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def views(self, stacked: Tensor) -> list[Tensor]:
        return list(stacked.split([p.shape[0] for p in self.params]))

    def state(self) -> dict[str, list[Tensor]]:
        named = {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}
        for side, factor, basis in zip(FACTORS, self.factors, self.bases, strict=True):
            named |= {side: factor, f"{side}_basis": basis}
        return {name: self.views(tensor) for name, tensor in named.items()}


@dataclass
class _Others:
    """All other parameters of E members, flattened side by side into (E, n): Adam is elementwise."""

    params: list[Tensor]
    exp_avg: Tensor
    exp_avg_sq: Tensor

    def gather(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat([t.flatten(1) for t in tensors], dim=1)

    def views(self, stacked: Tensor) -> list[Tensor]:
        parts = stacked.split([p[0].numel() for p in self.params], dim=1)
        return [part.unflatten(1, p.shape[1:]) for part, p in zip(parts, self.params, strict=True)]

    def state(self) -> dict[str, list[Tensor]]:
        return {"exp_avg": self.views(self.exp_avg), "exp_avg_sq": self.views(self.exp_avg_sq)}


@dataclass
class _Plan:
    """How the parameters of one group are stacked."""

    params: list[Tensor]
    steps: Tensor  # (2,) float64, on the device: updates of the matrices, updates of the others
    matrices: list[_Matrices]
    others: list[_Others]


class SOAP(Optimizer):
    r"""Adam in the eigenbasis of Shampoo's factors (arXiv:2409.11321), member by member.

    A parameter of shape (E, in, out) with in > 1 is a stack of E weight matrices and is preconditioned from both
    sides. Everything else, such as biases (E, 1, out) or (E, n), gets plain Adam with bias correction.

    Within a group, the same parameters must have gradients at every step; those without one at the first step are
    left out. An ordinary step never waits for the device, and works in place on `state`, whose tensors are views of
    the stacks. To capture it in a CUDA graph, take the first `step` outside the graph, capture up to `reach()` calls of
    `update`, and after every replay (not after the capture, which runs nothing) call `advance`, and `refresh` if it
    says so; capture again after `load_state_dict`. The learning rate must then be a tensor on the device; `betas` and
    the other numbers are baked into the graph.

    Args:
        params: parameters or groups of them, as for every torch optimiser.
        lr: learning rate, a number or a tensor with one element. Anything from 1e-3 to 1e-2 is fine.
        betas: decay of the first and of the second moment.
        shampoo_beta: decay of the factors L and R.
        eps: added to the root of the second moment.
        weight_decay: decoupled from the gradient, as in AdamW.
        precondition_every: updates between two refreshes of the eigenbasis.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(3, 4, 2))  # three members
        >>> optimiser = SOAP([weight], lr=0.1)
        >>> for _ in range(100):
        ...     optimiser.zero_grad()
        ...     weight.square().sum().backward()
        ...     optimiser.step()
        >>> bool(weight.abs().max() < 0.1)
        True
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        shampoo_beta: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        precondition_every: int = 16,
    ) -> None:
        if lr.numel() != 1 if isinstance(lr, Tensor) else not lr >= 0:
            raise AmpsureError(f"The learning rate must be one number, not negative, instead of {lr}.")
        for name, beta in (("betas", betas[0]), ("betas", betas[1]), ("shampoo_beta", shampoo_beta)):
            if not 0 <= beta < 1:
                raise AmpsureError(f"{name} must lie in [0, 1), unlike {beta}.")
        for name, value in (("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise AmpsureError(f"{name} must not be negative, unlike {value}.")
        if precondition_every != int(precondition_every) or precondition_every < 1:
            raise AmpsureError(f"precondition_every must be a whole number from 1, not {precondition_every}.")
        self._plans: list[_Plan | None] = []
        self._due: list[_Plan] = []
        defaults = {
            "lr": lr,
            "betas": betas,
            "shampoo_beta": shampoo_beta,
            "eps": eps,
            "weight_decay": weight_decay,
            "precondition_every": int(precondition_every),
            "steps": 0,  # calls of `step`: the clock of the refresh, a Python number, so that asking it costs nothing
        }
        super().__init__(params, defaults)

    # The state: views of the stacks while training, clones in state_dict.

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called on unpickling and by `load_state_dict`: the stacks are then built anew from `state`."""
        super().__setstate__(state)
        self._plans, self._due = [], []

    def state_dict(self) -> dict[str, Any]:
        """A copy of the whole state, which further steps leave alone."""
        found = super().state_dict()
        found["state"] = {
            key: {name: value.clone() for name, value in state.items()} for key, state in found["state"].items()
        }
        for group in found["param_groups"]:
            if isinstance(group["lr"], Tensor):
                group["lr"] = group["lr"].clone()
        return found

    def _plan(self, index: int) -> _Plan | None:
        """The stacks of a group, built when first asked for; None as long as it has no gradients."""
        self._plans += [None] * (len(self.param_groups) - len(self._plans))
        plan = self._plans[index]
        params = [p for p in self.param_groups[index]["params"] if p.grad is not None]
        if plan is None and params:
            self._plans[index] = plan = self._stack(params)
        elif plan is not None and len(params) != len(plan.params):
            raise AmpsureError(
                f"{len(params)} parameters of group {index} have a gradient, but {len(plan.params)} had one before: "
                "SOAP needs the same ones at every step."
            )
        return plan

    def _stack(self, params: list[Tensor]) -> _Plan:
        """Stacks the state of `params`: the present one, or zeros for a new parameter."""
        shapes: dict[Any, list[Tensor]] = {}
        for p in params:
            if not p.is_floating_point() or p.layout != torch.strided:
                raise AmpsureError(f"SOAP takes dense real parameters, not {p.dtype} with layout {p.layout}.")
            is_matrix = p.ndim == 3 and p.shape[1] > 1
            shapes.setdefault((p.dtype, p.device, p.shape if is_matrix else len(p)), []).append(p)
        plan = _Plan(params, torch.zeros(2, dtype=torch.float64, device=params[0].device), [], [])
        for (_, _, shape), members in shapes.items():
            stack: _Matrices | _Others
            zeros = members[0].new_zeros
            if isinstance(shape, int):
                size = (shape, sum(p[0].numel() for p in members))
                stack = _Others(members, zeros(size), zeros(size))
                plan.others.append(stack)
            else:
                b, (rows, cols) = len(members) * shape[0], shape[1:]
                factors, bases = ((zeros(b, rows, rows), zeros(b, cols, cols)) for _ in range(2))
                stack = _Matrices(members, zeros(b, rows, cols), zeros(b, rows, cols), factors, bases)
                plan.matrices.append(stack)
            for i, p in enumerate(members):
                views = {name: tensors[i] for name, tensors in stack.state().items()}
                views["step"] = plan.steps[0 if isinstance(stack, _Matrices) else 1]
                for name, value in self.state.get(p, {}).items():
                    views[name].copy_(value)
                self.state[p] = views
        return plan

    # The step.

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step: `update`, and `refresh` if `advance` asks for it. The first one only sets up the basis."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.update()
        if self.advance():
            self.refresh()
        return loss

    @torch.no_grad()
    def update(self, rate: Tensor | None = None) -> None:
        """Moves the parameters and the moments: the part of a step that a CUDA graph can capture.

        Args:
            rate: (E,) learning rate of every member, instead of `lr`.
        """
        for index, group in enumerate(self.param_groups):
            plan = self._plan(index)
            if plan is None:
                continue
            first = group["steps"] == 0
            (plan.steps[1:] if first else plan.steps).add_(1)
            beta1, beta2 = group["betas"]
            dtype = plan.params[0].dtype  # mixed types would take slower kernels
            correction1 = (1 - torch.pow(beta1, plan.steps)).to(dtype).unbind()
            correction2 = (1 - torch.pow(beta2, plan.steps)).sqrt_().to(dtype).unbind()
            for matrices in plan.matrices:
                if first:
                    self._set_up(matrices, group)
                else:
                    self._update_matrices(matrices, group, rate, correction1[0], correction2[0])
            for others in plan.others:
                grad = others.gather(_gradients(others.params))
                others.exp_avg.lerp_(grad, 1 - beta1)
                others.exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                denominator = others.exp_avg_sq.sqrt().div_(correction2[1]).add_(group["eps"])
                _move(others, (others.exp_avg / correction1[1]).div_(denominator), group, rate)

    def reach(self) -> int:
        """Updates that may follow each other before `advance`."""
        return min(
            group["precondition_every"] - (group["steps"] - 1) % group["precondition_every"] if group["steps"] else 1
            for group in self.param_groups
        )

    def advance(self, steps: int = 1) -> bool:
        """Counts finished updates, up to `reach()`; True if it is time to `refresh`."""
        self._due = []
        for plan, group in zip(self._plans, self.param_groups, strict=True):
            if plan is None:
                continue
            group["steps"] += steps
            updates = group["steps"] - 1  # of the matrices: the first step is for the basis
            if updates > 0 and updates % group["precondition_every"] == 0:
                self._due.append(plan)
        return bool(self._due)

    @torch.no_grad()
    def refresh(self) -> None:
        """Refreshes the eigenbases for which it is time; a CUDA graph can capture it."""
        for plan in self._due:
            _refresh(plan.matrices)

    @staticmethod
    def _set_up(stack: _Matrices, group: dict[str, Any]) -> None:
        grad = stack.gather(_gradients(stack.params))
        _update_factors(stack, grad, group["shampoo_beta"])
        grad = grad.double()  # float32 squares would fill the null space with rounding errors
        for factor, basis in zip((grad @ grad.mT, grad.mT @ grad), stack.bases, strict=True):
            n = factor.shape[-1]
            tilt = torch.linspace(SET_UP_TILT, SET_UP_TILT / n, n, dtype=factor.dtype, device=factor.device)
            diagonal = factor.diagonal(dim1=-2, dim2=-1)
            diagonal.add_(diagonal.sum(-1, keepdim=True) * tilt)
            factor = factor.nan_to_num(0.0, 0.0, 0.0)  # whoever trains sees a loss that is not finite soon enough
            basis.copy_(torch.linalg.eigh(factor).eigenvectors.flip(-1))  # largest eigenvalue first

    @staticmethod
    def _update_matrices(
        stack: _Matrices, group: dict[str, Any], rate: Tensor | None, correction1: Tensor, correction2: Tensor
    ) -> None:
        beta1, beta2 = group["betas"]
        left, right = stack.bases
        grad = stack.gather(_gradients(stack.params))
        stack.exp_avg.lerp_(grad, 1 - beta1)
        rotated = left.mT @ grad @ right
        stack.exp_avg_sq.mul_(beta2).addcmul_(rotated, rotated, value=1 - beta2)
        denominator = stack.exp_avg_sq.sqrt().div_(correction2).add_(group["eps"])
        direction = (left.mT @ stack.exp_avg @ right).div_(correction1).div_(denominator)
        _move(stack, left @ direction @ right.mT, group, rate)
        _update_factors(stack, grad, group["shampoo_beta"])


def _gradients(params: Iterable[Tensor]) -> list[Tensor]:
    return [p.grad for p in params if p.grad is not None]


def _move(stack: _Matrices | _Others, direction: Tensor, group: dict[str, Any], rate: Tensor | None) -> None:
    """W <- W - lr (direction + weight_decay W); overwrites `direction`."""
    lr = group["lr"]
    if group["weight_decay"] != 0:
        direction.add_(stack.gather(stack.params), alpha=group["weight_decay"])
    if rate is not None:
        layers = direction.unflatten(0, (-1, len(rate)))  # (layers, E, ...)
        layers.mul_(rate.view(-1, *[1] * (direction.ndim - 1)))
    else:  # a tensor without axes counts as a number: a float64 learning rate does not promote float32 weights
        direction.mul_(lr.reshape(()) if isinstance(lr, Tensor) else lr)
    torch._foreach_sub_(stack.params, stack.views(direction))


def _update_factors(stack: _Matrices, grad: Tensor, beta: float) -> None:
    """L <- beta L + (1 - beta) G G^T and R likewise; the basis does not see the missing bias correction."""
    left, right = stack.factors
    left.baddbmm_(grad, grad.mT, beta=beta, alpha=1 - beta)
    right.baddbmm_(grad.mT, grad, beta=beta, alpha=1 - beta)


def _refresh(stacks: Iterable[_Matrices]) -> None:
    """One orthogonal iteration Q <- qr(L Q) for all factors; those of one size share each call.

    The columns are first sorted by the estimated eigenvalues q^T L q, and the second moments follow them. L is shifted
    by a tiny multiple of the identity (see above), and eigenvalues below the shift keep their order.
    """
    stacks = list(stacks)
    sizes: dict[Any, list[tuple[int, int]]] = {}
    for i, stack in enumerate(stacks):
        for side, factor in enumerate(stack.factors):
            sizes.setdefault((factor.dtype, factor.device, factor.shape[-1]), []).append((i, side))
    orders: dict[tuple[int, int], Tensor] = {}
    for places in sizes.values():
        factors = torch.cat([stacks[i].factors[side] for i, side in places])
        bases = torch.cat([stacks[i].bases[side] for i, side in places])
        fresh, order = _iterated(factors, bases)
        lengths = [stacks[i].factors[side].shape[0] for i, side in places]
        for (i, side), q, o in zip(places, fresh.split(lengths), order.split(lengths), strict=True):
            stacks[i].bases[side].copy_(q)
            orders[i, side] = o
    for i, stack in enumerate(stacks):
        v = stack.exp_avg_sq
        rows = orders[i, 0].unsqueeze(-1).expand_as(v)
        cols = orders[i, 1].unsqueeze(-2).expand_as(v)
        v.copy_(v.gather(-2, rows).gather(-1, cols))


def _iterated(factors: Tensor, bases: Tensor) -> tuple[Tensor, Tensor]:
    """New bases (B, n, n) in float64 and the order (B, n) of the old columns in them."""
    exact = factors.dtype == torch.float64
    shift = REFRESH_SHIFT.get(factors.dtype, REFRESH_SHIFT_OTHERWISE)
    factors, bases = factors.double(), bases.double()
    floor = shift * factors.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)  # (B, 1)
    product = factors @ bases
    eigenvalues = torch.maximum((bases * product).sum(-2), floor)  # (B, n)
    order = eigenvalues.argsort(dim=-1, descending=True, stable=True)
    columns = order.unsqueeze(-2).expand_as(product)
    fresh = torch.nn.functional.normalize((product + bases * floor.unsqueeze(-1)).gather(-1, columns), dim=-2)
    failed = torch.zeros_like(order[:, 0], dtype=torch.bool)
    for _ in range(1 + exact):  # once more brings back the digits that small pivots cost, if they are kept
        triangle, info = torch.linalg.cholesky_ex(fresh.mT @ fresh, upper=True)
        fresh = torch.linalg.solve_triangular(triangle, fresh, upper=True, left=False)
        failed |= info != 0
    return torch.where(failed[:, None, None], bases.gather(-1, columns), fresh), order
