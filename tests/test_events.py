"""Events: validation, selection, splitting; processes of the user's own."""

from __future__ import annotations

import numpy as np
import pytest

import ampsure
from ampsure import AmpsureError, Events, InvalidEventsError, Process, get_process, register_process
from ampsure.disturbances import Gap


def two_to_two(n: int, masses=(0.0, 0.0, 173.0, 173.0), seed: int = 0) -> np.ndarray:
    """p p -> two particles with the given masses, (n, 4, 4), by hand."""
    rng = np.random.default_rng(seed)
    root_s = rng.uniform(400, 1000, n)
    m3, m4 = masses[2:]
    e3 = (root_s**2 + m3**2 - m4**2) / (2 * root_s)
    momentum = np.sqrt(e3**2 - m3**2)
    cos, phi = rng.uniform(-1, 1, n), rng.uniform(-np.pi, np.pi, n)
    sin = np.sqrt(1 - cos**2)
    vector = momentum[:, None] * np.stack([sin * np.cos(phi), sin * np.sin(phi), cos], 1)
    p = np.zeros((n, 4, 4))
    p[:, 0, 0] = p[:, 0, 3] = p[:, 1, 0] = root_s / 2
    p[:, 1, 3] = -root_s / 2
    p[:, 2, 0], p[:, 3, 0] = e3, root_s - e3
    p[:, 2, 1:], p[:, 3, 1:] = vector, -vector
    return p


def test_defaults_are_trivial(flat_events):
    events = Events(flat_events.momenta, flat_events.amplitude)
    assert np.array_equal(events.truth, events.amplitude)
    assert not events.noise.any()
    assert (events.weights == 1).all()
    assert events.trainable.all()
    assert events.effective_size == len(events)


def test_masses_are_read_off_the_momenta():
    events = Events(two_to_two(100), np.ones(100))
    np.testing.assert_allclose(events.process.masses, (0, 0, 173, 173), rtol=1e-9)
    assert not events.find_invalid()[0].any()
    assert Events(flat := two_to_two(5, (0, 0, 0, 0)), np.ones(5)).process.masses == (0,) * 4
    assert flat.shape == (5, 4, 4)


def test_selection_keeps_columns_together(events):
    mask = events.amplitude > np.median(events.amplitude)
    subset = events[mask]
    assert len(subset) == mask.sum()
    assert np.array_equal(subset.momenta, events.momenta[mask])
    assert np.array_equal(events[10:20].amplitude, events.amplitude[10:20])
    whole = Events.concatenate([events[:100], events[100:]])
    assert np.array_equal(whole.momenta, events.momenta)
    with pytest.raises(TypeError):
        events[3]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("amplitude", np.nan, "amplitude is not finite"),
        ("amplitude", -1.0, "amplitude is not positive"),
        ("truth", 0.0, "amplitude is not positive"),
        ("weights", np.inf, "weight is not finite"),
        ("noise", -1.0, "noise level"),
    ],
)
def test_invalid_events_are_named_or_dropped(events, column, value, reason):
    spoiled = events[:50]
    setattr(spoiled, column, getattr(spoiled, column).copy())
    getattr(spoiled, column)[7] = value
    with pytest.raises(InvalidEventsError, match=f"Event 7 of the events .*{reason}"):
        spoiled.validated()
    kept = spoiled.validated(invalid="drop")
    assert len(kept) == 49
    assert kept.provenance["dropped"]["events"] == 1
    assert reason in next(iter(kept.provenance["dropped"]["reasons"]))
    assert "dropped" not in spoiled.provenance
    if value in (-1.0, 0.0) and column != "noise":
        assert len(spoiled.validated(signed=True)) == 50


def test_corrupt_momenta_are_found(events):
    """As in the public sample of this process: beams off the z axis, transverse momentum not balanced."""
    momenta = events.momenta[:20].copy()
    momenta[4, 0] = [500, 300, 0, 400]
    with pytest.raises(InvalidEventsError, match=r"Event 4 .*balance"):
        Events(momenta, np.ones(20)).validated()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"momenta": np.zeros((3, 4))}, r"\(N, n, 4\)"),
        ({"momenta": np.zeros((3, 2, 4))}, "n >= 3"),
        ({"momenta": [["a"]]}, "numbers"),
        ({"amplitude": np.ones(2)}, r"amplitude must have shape \(3,\)"),
        ({"weights": np.ones((3, 1))}, r"weights must have shape"),
        ({"process": get_process("gg_yyg")}, "5 legs"),
    ],
)
def test_shapes_are_checked(arguments, words):
    with pytest.raises(InvalidEventsError, match=words):
        Events(**{"momenta": two_to_two(3), "amplitude": np.ones(3), **arguments})


def test_split_is_random_complete_and_seeded(events):
    parts = events.split(seed=1)
    assert [len(p) for p in parts] == [1400, 200, 400]
    rows = np.concatenate([p.amplitude for p in parts])
    assert np.array_equal(np.sort(rows), np.sort(events.amplitude))
    assert not np.array_equal(parts[0].amplitude, events.amplitude[:1400])
    again, other = events.split(seed=1), events.split(seed=2)
    assert np.array_equal(again[2].amplitude, parts[2].amplitude)
    assert not np.array_equal(other[2].amplitude, parts[2].amplitude)
    with pytest.raises(AmpsureError, match="add up to one"):
        events.split(1, (0.5, 0.1, 0.1))


def test_gap_is_kept_from_training_but_not_from_the_test(events):
    gapped = Gap(half_width=40)(events)
    train, validation, test = gapped.split(seed=1)
    inside = [np.abs(p.final_state_mass - 200) < 40 for p in (train, validation, test)]
    assert not inside[0].any()
    assert not inside[1].any()
    assert inside[2].sum() > 10
    assert np.array_equal(test.amplitude, events.split(seed=1)[2].amplitude)


def test_user_process_with_exact_amplitude():
    def exact(momenta, scale=1.0):
        return scale * momenta[:, 2, 0]

    top = register_process(Process("qq_tt_test", (1, -1, 6, -6), (0, 0, 173.0, 173.0), exact=exact))
    momenta = two_to_two(5)
    np.testing.assert_array_equal(ampsure.get_process("qq_tt_test").amplitude(momenta, scale=2), 2 * momenta[:, 2, 0])
    assert Process.from_dict(top.to_dict()) is top
    assert top.label == "d d~ > t t~"
    assert top.identical == ()
    assert get_process("gg_yyg").identical == ((2, 3),)
    with pytest.raises(AmpsureError, match="already registered"):
        register_process(Process("qq_tt_test", (1, -1, 6, -6), (0, 0, 170.0, 170.0)))
    changed = {**top.to_dict(), "masses": [0, 0, 1, 1]}
    assert Process.from_dict(changed).exact is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"masses": (0, 0, 0)}, "4 PDG ids and 3 masses"),
        ({"masses": (0, 0, 0, -1)}, "negative"),
        ({"n_incoming": 4}, "outgoing"),
    ],
)
def test_impossible_processes(arguments, words):
    with pytest.raises(AmpsureError, match=words):
        Process(**{"name": "x", "pdg_ids": (1, 2, 3, 4), "masses": (0,) * 4, **arguments})


def test_unknown_process_and_missing_amplitude():
    with pytest.raises(AmpsureError, match=r"known are .*gg_yyg"):
        get_process("gg_hh")
    with pytest.raises(AmpsureError, match="No exact amplitude"):
        Process("x", (1, 2, 3, 4), (0,) * 4).amplitude(two_to_two(2))
