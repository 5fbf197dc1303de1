"""SOAP: every member for itself, equal to a plain numpy version, better than Adam."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch

from ampsure import AmpsureError
from ampsure.training.soap import SOAP

SHAPES = [(5, 5), (7, 7), (7, 7), (1, 7), (7, 3), (7, 1), (4,)]  # two of equal shape, biases, some without full rank


def parameters(members: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(members, *shape, generator=generator, dtype=torch.float64).to(dtype))
        for shape in SHAPES
    ]


def gradients(members: int, steps: int, seed: int = 1) -> list[list[torch.Tensor]]:
    """Full-rank gradients with very different scales along rows and columns."""
    generator = torch.Generator().manual_seed(seed)
    scale = [torch.logspace(0, -2, shape[-1], dtype=torch.float64) for shape in SHAPES]
    return [
        [
            torch.randn(members, *shape, generator=generator, dtype=torch.float64) * s
            for shape, s in zip(SHAPES, scale, strict=True)
        ]
        for _ in range(steps)
    ]


def drive(optimiser: torch.optim.Optimizer, params, grads) -> None:
    for step in grads:
        for p, g in zip(params, step, strict=True):
            p.grad = g.to(p.dtype)
        optimiser.step()


# Members


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_member_moves_as_it_would_alone(weight_decay):
    together, grads = parameters(4), gradients(4, 40)
    drive(SOAP(together, lr=0.01, precondition_every=8, weight_decay=weight_decay), together, grads)
    for e in range(4):
        alone = [torch.nn.Parameter(p[e : e + 1].detach().clone()) for p in parameters(4)]
        optimiser = SOAP(alone, lr=0.01, precondition_every=8, weight_decay=weight_decay)
        drive(optimiser, alone, [[g[e : e + 1] for g in step] for step in grads])
        for a, b in zip(alone, together, strict=True):
            # The factors of (7, 1) are singular: rounding errors of 1e-16 grow by the inverse of the shift, 1e-10.
            torch.testing.assert_close(a[0], b[e], rtol=1e-6, atol=1e-6)


def test_the_gradients_of_a_member_never_reach_another():
    grads = gradients(3, 25)
    other = [[g.clone() for g in step] for step in grads]
    for i, step in enumerate(other):
        for g in step:
            g[1] = g[1] * 7 + 1 if i < 5 else torch.nan  # from the sixth step on the second member is lost
    finals = []
    for given in (grads, other):
        params = parameters(3)
        drive(SOAP(params, precondition_every=4), params, given)
        finals.append(params)
    for a, b in zip(*finals, strict=True):
        assert torch.equal(a[[0, 2]], b[[0, 2]])
        assert b[1].isnan().all()


def test_layers_of_one_shape_do_not_mix():
    params, grads = parameters(2), gradients(2, 20)
    drive(SOAP(params, precondition_every=4), params, grads)
    for i, start in enumerate(parameters(2)):
        drive(SOAP([start], precondition_every=4), [start], [[step[i]] for step in grads])
        torch.testing.assert_close(start, params[i], rtol=1e-6, atol=1e-6)


# The algorithm


class PlainSOAP:
    """One weight matrix, numpy, line by line after arXiv:2409.11321; the first bases are given."""

    def __init__(self, w, g, left_basis, right_basis, lr, beta1, beta2, shampoo_beta, eps, every, shift):
        self.w, self.lr, self.beta1, self.beta2, self.beta = w.copy(), lr, beta1, beta2, shampoo_beta
        self.eps, self.every, self.shift, self.t = eps, every, shift, 0
        self.m, self.v = np.zeros_like(w), np.zeros_like(w)
        self.factor_l, self.factor_r = (1 - self.beta) * g @ g.T, (1 - self.beta) * g.T @ g
        self.q_l, self.q_r = left_basis, right_basis

    def step(self, g):
        self.t += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * (self.q_l.T @ g @ self.q_r) ** 2
        m_hat = self.q_l.T @ self.m @ self.q_r / (1 - self.beta1**self.t)
        v_hat = self.v / (1 - self.beta2**self.t)
        self.w = self.w - self.lr * self.q_l @ (m_hat / (np.sqrt(v_hat) + self.eps)) @ self.q_r.T
        self.factor_l = self.beta * self.factor_l + (1 - self.beta) * g @ g.T
        self.factor_r = self.beta * self.factor_r + (1 - self.beta) * g.T @ g
        if self.t % self.every == 0:
            rows, self.q_l = self.iterate(self.factor_l, self.q_l)
            cols, self.q_r = self.iterate(self.factor_r, self.q_r)
            self.v = self.v[np.ix_(rows, cols)]

    def iterate(self, factor, basis):
        factor = factor + self.shift * np.trace(factor) * np.eye(len(factor))
        order = np.argsort(-np.diag(basis.T @ factor @ basis))
        return order, np.linalg.qr(factor @ basis[:, order])[0]


@pytest.mark.parametrize(("shift", "tolerance"), [(1e-10, 1e-9), (0, 1e-6)])
@pytest.mark.parametrize("shape", [(6, 6), (7, 3), (2, 9), (4, 1)])
def test_equals_a_plain_numpy_version(shape, shift, tolerance):
    rng = np.random.default_rng(5)
    start = rng.normal(size=(3, *shape))
    grads = (
        rng.normal(size=(51, 3, *shape)) * np.geomspace(1, 0.03, shape[-1]) * np.geomspace(2, 0.1, shape[0])[:, None]
    )
    grads[25:] = grads[25:][..., ::-1]  # the eigenvalues change places: the sorting has work to do
    w = torch.nn.Parameter(torch.tensor(start))
    optimiser = SOAP([w], lr=0.02, betas=(0.9, 0.95), shampoo_beta=0.8, eps=1e-6, precondition_every=5)
    drive(optimiser, [w], [[torch.tensor(grads[0])]])
    np.testing.assert_array_equal(w.detach(), start)  # the first step is for the basis only
    state = {name: value.clone() for name, value in optimiser.state[w].items()}
    drive(optimiser, [w], [[torch.tensor(g)] for g in grads[1:]])
    for e in range(3):
        bases = []
        for side, square in (("left", grads[0, e] @ grads[0, e].T), ("right", grads[0, e].T @ grads[0, e])):
            q = state[f"{side}_basis"][e].numpy()
            np.testing.assert_allclose(q.T @ q, np.eye(len(q)), atol=1e-13)
            np.testing.assert_allclose(
                q.T @ square @ q, np.diag(np.linalg.eigvalsh(square)[::-1]), atol=1e-8 * np.trace(square)
            )
            bases.append(q)
        plain = PlainSOAP(start[e], grads[0, e], *bases, 0.02, 0.9, 0.95, 0.8, 1e-6, 5, shift)
        for g in grads[1:, e]:
            plain.step(g)
        np.testing.assert_allclose(w[e].detach(), plain.w, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(optimiser.state[w]["exp_avg_sq"][e], plain.v, rtol=10 * tolerance)
        assert np.abs(plain.w - start[e]).max() > 0.05


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_biases_follow_adam(weight_decay):
    ours, theirs = ([torch.nn.Parameter(torch.ones(3, *s).double()) for s in [(1, 7), (5,), (1, 2)]] for _ in range(2))
    rng = torch.Generator().manual_seed(0)
    grads = [[torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in ours] for _ in range(60)]
    drive(SOAP(ours, lr=0.01, betas=(0.9, 0.99), weight_decay=weight_decay), ours, grads)
    drive(torch.optim.AdamW(theirs, lr=0.01, betas=(0.9, 0.99), weight_decay=weight_decay), theirs, grads)
    if weight_decay == 0:
        adam = [torch.nn.Parameter(torch.ones_like(p)) for p in ours]
        drive(torch.optim.Adam(adam, lr=0.01, betas=(0.9, 0.99)), adam, grads)
        theirs = adam
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)


def test_float32_stays_float32_and_close_to_float64():
    finals = []
    for dtype in (torch.float64, torch.float32):
        params = parameters(2, dtype=dtype)[:4]
        optimiser = SOAP(params, lr=torch.tensor([0.01], dtype=torch.float64), precondition_every=8)
        drive(optimiser, params, [step[:4] for step in gradients(2, 30)])
        assert all(v.dtype == dtype for p in params for name, v in optimiser.state[p].items() if name != "step")
        finals.append(params)
    for a, b in zip(*finals, strict=True):
        assert b.dtype == torch.float32
        torch.testing.assert_close(a, b.double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("lr", [torch.tensor(0.01), torch.tensor([0.01], dtype=torch.float64)], ids=["()", "(1,)"])
def test_lr_as_tensor(lr):
    number, tensor, grads = parameters(2), parameters(2), gradients(2, 20)
    drive(SOAP(number, lr=lr.item()), number, grads)
    optimiser = SOAP(tensor, lr=lr.clone())
    drive(optimiser, tensor, grads)
    for a, b in zip(number, tensor, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)
    before = [p.detach().clone() for p in tensor]
    optimiser.param_groups[0]["lr"].fill_(0.0)  # as a schedule does
    drive(optimiser, tensor, grads[:1])
    assert all(torch.equal(p, q) for p, q in zip(tensor, before, strict=True))


def test_a_one_cycle_schedule_drives_it():
    params = parameters(1)
    optimiser = SOAP(params, lr=torch.tensor(3e-3))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=10, cycle_momentum=False)
    for step in gradients(1, 9):
        drive(optimiser, params, [step])
        schedule.step()
    assert optimiser.param_groups[0]["lr"].item() < 1e-5


# The state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("stop", [0, 1, 9, 13])
def test_state_dict_round_trip_is_exact(stop, dtype):
    grads = gradients(2, 30)
    straight = parameters(2, dtype=dtype)
    drive(SOAP(straight, precondition_every=4), straight, grads)

    params = parameters(2, dtype=dtype)
    optimiser = SOAP(params, precondition_every=4)
    drive(optimiser, params, grads[:stop])
    kept = optimiser.state_dict()
    file = io.BytesIO()
    torch.save(kept, file)
    resumed = [torch.nn.Parameter(p.detach().clone()) for p in params]
    drive(optimiser, params, grads[stop:])  # must not change what was saved
    for saved in (kept, torch.load(io.BytesIO(file.getvalue()), weights_only=True)):
        copies = [torch.nn.Parameter(p.detach().clone()) for p in resumed]
        fresh = SOAP(copies, lr=1.0, precondition_every=7)
        fresh.load_state_dict(saved)
        drive(fresh, copies, grads[stop:])
        for a, b, c in zip(straight, params, copies, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(a, c)


def test_state_is_tensors_kept_in_place_and_the_copy_is_deep():
    params, grads = parameters(2), gradients(2, 12)
    optimiser = SOAP(params, precondition_every=3)
    drive(optimiser, params, grads[:1])
    where = {(i, n): v.data_ptr() for i, p in enumerate(params) for n, v in optimiser.state[p].items()}
    drive(optimiser, params, grads[1:])
    assert where == {(i, n): v.data_ptr() for i, p in enumerate(params) for n, v in optimiser.state[p].items()}
    twin = copy.deepcopy(optimiser)
    copies = twin.param_groups[0]["params"]
    drive(optimiser, params, grads)
    drive(twin, copies, grads)
    assert all(torch.equal(a, b) for a, b in zip(params, copies, strict=True))


def test_update_and_advance_are_a_step():
    grads = gradients(2, 12)
    params, split = parameters(2), parameters(2)
    drive(SOAP(params, precondition_every=4), params, grads)
    optimiser = SOAP(split, precondition_every=4)
    for step in grads:
        for p, g in zip(split, step, strict=True):
            p.grad = g
        optimiser.update()
        if optimiser.advance():
            optimiser.refresh()
    assert all(torch.equal(a, b) for a, b in zip(params, split, strict=True))


def test_parameters_without_gradient_and_groups():
    params, grads = parameters(2), gradients(2, 10)
    frozen = torch.nn.Parameter(torch.ones(2, 3, 3))
    optimiser = SOAP([{"params": params[:3]}, {"params": [*params[3:], frozen], "lr": 0.0}])
    drive(optimiser, params, grads)
    start = parameters(2)
    assert not any(torch.equal(a, b) for a, b in zip(params[:3], start[:3], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(params[3:], start[3:], strict=True))
    assert frozen not in optimiser.state
    params[1].grad = None
    with pytest.raises(AmpsureError, match="the same ones at every step"):
        optimiser.step()


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": -1.0},
        {"lr": torch.ones(2)},
        {"betas": (1.0, 0.9)},
        {"shampoo_beta": 1.5},
        {"eps": -1e-8},
        {"weight_decay": float("nan")},
        {"precondition_every": 0},
        {"precondition_every": 2.5},
    ],
    ids=str,
)
def test_bad_settings_are_named(bad):
    with pytest.raises(AmpsureError):
        SOAP(parameters(1), **bad)


# Does it learn?


def one_cycle(optimiser: torch.optim.Optimizer, loss, steps: int) -> float:
    """The loss of the worst member after `steps` steps with a one-cycle schedule from the learning rate given."""
    peak = optimiser.param_groups[0]["lr"]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, peak, total_steps=steps + 1, cycle_momentum=False)
    for _ in range(steps):
        optimiser.zero_grad()
        loss().sum().backward()
        optimiser.step()
        schedule.step()
    return float(loss().detach().max())


def test_beats_adam_on_an_ill_conditioned_regression():
    """Linear, correlated inputs of condition number 100, not along the axes: a factor of 10^4 at equal steps."""
    rng = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    rotation, _ = torch.linalg.qr(normal(20, 20))
    x = normal(200, 20) * torch.logspace(0, -2, 20, dtype=torch.float64) @ rotation
    y = x @ rotation.T @ torch.diag(torch.logspace(0, 2, 20, dtype=torch.float64)) @ normal(20, 5)
    best = {}
    for name in ("adam", "soap"):
        losses = []
        for lr in (1.0, 3.0, 10.0):  # to each its best
            w = torch.nn.Parameter(torch.zeros(2, 20, 5, dtype=torch.float64))
            optimiser = SOAP([w], lr=lr) if name == "soap" else torch.optim.Adam([w], lr=lr)
            losses.append(one_cycle(optimiser, lambda w=w: (x @ w - y).square().mean((1, 2)), 500))
        best[name] = min(losses)
    assert best["soap"] < 1e-4 * best["adam"]


def test_beats_adam_on_a_network():
    """A small network in two dimensions, whole batch: a factor of 20 at equal steps."""
    rng = torch.Generator().manual_seed(3)
    x = torch.rand(256, 2, generator=rng, dtype=torch.float64) * 2 - 1
    y = torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:]) + x[:, :1] * x[:, 1:]
    sizes = [(2, 24), (24, 24), (24, 1)]
    start = [torch.randn(3, i, o, generator=rng, dtype=torch.float64) / i**0.5 for i, o in sizes]
    best = {}
    for name in ("adam", "soap"):
        losses = []
        for lr in (1e-2, 3e-2):
            weights = [torch.nn.Parameter(w.clone()) for w in start]
            biases = [torch.nn.Parameter(torch.zeros(3, 1, o, dtype=torch.float64)) for _, o in sizes]

            def loss(weights=weights, biases=biases):
                h = x
                for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
                    h = (torch.tanh(h) if i else h) @ w + b
                return (h - y).square().mean((1, 2))

            params = [*weights, *biases]
            optimiser = SOAP(params, lr=lr) if name == "soap" else torch.optim.Adam(params, lr=lr)
            losses.append(one_cycle(optimiser, loss, 400))
        best[name] = min(losses)
    assert best["soap"] < best["adam"] / 20
