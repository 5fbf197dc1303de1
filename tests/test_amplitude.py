"""The exact amplitude: agreement with every source, symmetries, input checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsure import InvalidEventsError, get_process
from ampsure.processes.gg_yyg import HELICITIES, amplitude, helicity_squares
from validation import amplitude as validation

POINT = np.array([[[14, 0, 0, 14], [33, 0, 0, -33], [9, 1, 4, 8], [7, -6, 2, 3], [31, 5, -6, -30]]], float)


@pytest.mark.parametrize("source", validation.SOURCES)
def test_agrees_with(source):
    try:
        agreement = validation.SOURCES[source]()
    except validation.SkippedError as reason:
        pytest.skip(str(reason))
    assert agreement.points > 0
    assert agreement.deviation <= agreement.limit


@pytest.mark.parametrize("limit", validation.LIMITS)
def test_error_grows_slowly_towards(limit):
    for agreement in validation.near_limit(limit):
        assert agreement.deviation <= agreement.limit


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rapidity=st.floats(0, 3))
def test_invariant_under_lorentz_transformations(seed, rapidity):
    rng = np.random.default_rng(seed)
    momenta = validation.benchmark_points(20, seed=5)
    transformation = validation.lorentz_transformations(rng, len(momenta), rapidity)
    turned = momenta @ transformation.transpose(0, 2, 1)
    # a boost of rapidity y mixes components e^2y times larger than the invariants
    np.testing.assert_allclose(amplitude(turned), amplitude(momenta), rtol=1e-13 * np.exp(2 * rapidity) * 10)


def test_gluons_are_exchanged_across_the_final_state():
    """Crossing: the sum over helicities does not know which gluon came in first."""
    momenta = validation.benchmark_points(50, seed=6)
    np.testing.assert_allclose(amplitude(momenta[:, [1, 0, 3, 2, 4]]), amplitude(momenta), rtol=1e-11)


def test_scales_with_energy_as_its_dimension():
    momenta = validation.benchmark_points(50, seed=7)
    np.testing.assert_allclose(amplitude(1000 * momenta), amplitude(momenta) / 1e6, rtol=1e-12)


def test_helicities_add_up_to_the_squared_amplitude():
    momenta = validation.benchmark_points(20, seed=8)
    couplings = 3 * np.pi * 0.118**3 / 137.035999084**2 * (11 / 9) ** 2
    np.testing.assert_allclose(amplitude(momenta), couplings * helicity_squares(momenta).sum(1), rtol=1e-14)
    assert len(set(HELICITIES)) == 32


def test_options_change_the_couplings():
    base = amplitude(POINT)
    np.testing.assert_allclose(amplitude(POINT, alpha_s=0.236), 8 * base)
    np.testing.assert_allclose(amplitude(POINT, alpha=2 / 137.035999084), 4 * base)
    np.testing.assert_allclose(amplitude(POINT, identical=True), base / 2)
    np.testing.assert_allclose(amplitude(POINT, n_flavours=4), base * (10 / 11) ** 2)
    with pytest.raises(ValueError, match="n_flavours"):
        amplitude(POINT, n_flavours=7)


def test_keeps_the_kind_of_array():
    momenta = validation.benchmark_points(5000, seed=9)  # more than one chunk
    from_tensor = get_process("gg_yyg").amplitude(torch.from_numpy(momenta))
    assert isinstance(from_tensor, torch.Tensor)
    assert not from_tensor.is_inference()
    assert np.array_equal(from_tensor.numpy(), amplitude(momenta))
    assert amplitude(np.empty((0, 5, 4))).shape == (0,)
    assert helicity_squares(np.empty((0, 5, 4))).shape == (0, 32)


def test_does_not_depend_on_the_batch_or_the_threads():
    momenta = validation.benchmark_points(5000, seed=10)
    whole = amplitude(momenta)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert np.array_equal(amplitude(momenta), whole)
    finally:
        torch.set_num_threads(threads)
    single = np.concatenate([amplitude(momenta[i : i + 1]) for i in range(20)])
    np.testing.assert_allclose(single, whole[:20], rtol=1e-13)


def _spoiled(index, value):
    momenta = np.repeat(POINT, 3, axis=0)
    momenta[(1, *index)] = value
    return momenta


@pytest.mark.parametrize(
    ("momenta", "words"),
    [
        (np.zeros((3, 4, 4)), r"\(N, 5, 4\)"),
        (np.zeros((5, 4)), r"\(N, 5, 4\)"),
        ([["a"]], "numeric"),
        (_spoiled((2, 1), np.nan), "Event 1 of 3 .* not finite"),
        (_spoiled((2, 0), 12.0), "Event 1 of 3 .* off its mass shell"),
        (_spoiled((4,), [31.0, -5, 6, 30]), "Event 1 of 3 .* do not balance"),
        (_spoiled((0, 0), -14.0), "Event 1 of 3 .* not positive"),
    ],
)
def test_bad_momenta_are_named(momenta, words):
    with pytest.raises(InvalidEventsError, match=words):
        amplitude(momenta)


def test_exactly_collinear_legs_are_named():
    along_z = [[50, 0, 0, 50], [50, 0, 0, -50], [30, 0, 0, 30], [20, 0, 0, 20], [50, 0, 0, -50]]
    with pytest.raises(InvalidEventsError, match=r"Event 0 of 1 .* collinear"):
        amplitude(np.array([along_z], float))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu():
    momenta = torch.from_numpy(validation.benchmark_points(5000, seed=10))
    on_gpu = amplitude(momenta.cuda())
    assert on_gpu.is_cuda
    torch.testing.assert_close(on_gpu.cpu(), amplitude(momenta), rtol=1e-12, atol=0)
