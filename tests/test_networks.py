"""Stacked networks are what they stack."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ampsure import AmpsureError
from ampsure.networks import ACTIVATIONS, StackedMLP


def _plain(network: StackedMLP, member: int) -> list[nn.Linear]:
    """The layers of one member as ordinary modules."""
    layers = []
    for weight, bias in zip(network.weights, network.biases, strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[2], dtype=weight.dtype)
        with torch.no_grad():
            layer.weight.copy_(weight[member].T)
            layer.bias.copy_(bias[member, 0])
        layers.append(layer)
    return layers


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_member_is_an_ordinary_network(activation, residual):
    options = {"hidden": (16, 16, 16), "activation": activation, "residual": residual, "dtype": torch.float64}
    network = StackedMLP(5, 2, members=3, seed=1, **options)
    x = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = network(x)
    for member in range(3):
        *hidden, last = _plain(network, member)
        h = x
        for k, layer in enumerate(hidden):
            new = ACTIVATIONS[activation](layer(h))
            h = h + new if residual and k > 0 else new
        torch.testing.assert_close(out[member], last(h))


def test_a_member_is_the_same_in_any_stack():
    large, small = (StackedMLP(4, 1, hidden=(8,), members=n, seed=3) for n in (6, 2))
    for a, b in zip(large.parameters(), small.parameters(), strict=True):
        assert torch.equal(a[:2], b)
    assert not torch.equal(large.weights[0][0], large.weights[0][1])


def test_members_may_have_inputs_of_their_own():
    network = StackedMLP(4, 1, hidden=(8,), members=3, seed=3)
    x = torch.randn(3, 5, 4)
    out = network(x)
    for member in range(3):
        torch.testing.assert_close(out[member], network(x[member])[member])


def test_detached_outputs_do_not_reach_the_features():
    network = StackedMLP(4, 2, hidden=(8, 8), members=2, seed=3)
    out = network(torch.randn(5, 4), detached=slice(1, 2))
    torch.testing.assert_close(out, network(torch.randn(0, 4).new_zeros(0, 4)).new_tensor(out.tolist()))
    out[..., 1].sum().backward()
    assert network.weights[0].grad is None or not network.weights[0].grad.any()
    assert network.weights[-1].grad[..., 1].any()
    network.zero_grad()
    network(torch.randn(5, 4), detached=slice(1, 2))[..., 0].sum().backward()
    assert network.weights[0].grad.any()


def test_unknown_activation():
    with pytest.raises(AmpsureError, match="gelu"):
        StackedMLP(1, 1, activation="swosh")
