"""Densities, cuts, phase space, unweighting and whole samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import integrate, stats

import ampsure
from ampsure import AmpsureError, Process, get_process
from ampsure.generation import PRESETS, Cuts, get_density, get_settings
from ampsure.generation.densities import cteq5l_gluon, grv94lo_gluon
from ampsure.generation.phase_space import ChiliSpace, CrossSection, RamboSpace
from ampsure.generation.sampler import FlowSampler, training_rounds
from ampsure.generation.unweighting import maximum_weight, unweighting_efficiency
from ampsure.kinematics import delta_r, invariant_mass, pseudorapidity, transverse_momentum
from validation.cross_section import REFERENCES

# Values of Pythia 8.317's own implementations.
PYTHIA = [
    (0.1, 91.188, 0.8711784818, 0.7870514399),
    (0.01, 91.188, 8.710383522, 8.066313176),
    (0.3, 10.0, 0.1684722234, 0.1366922938),
    (1e-4, 2.0, 35.00101197, 24.05900864),
]


@pytest.mark.parametrize(("x", "q", "grv", "cteq"), PYTHIA)
def test_embedded_densities_agree_with_pythia(x, q, grv, cteq):
    assert grv94lo_gluon(np.array(x), q) == pytest.approx(grv, rel=1e-9)
    assert cteq5l_gluon(np.array(x), q) == pytest.approx(cteq, rel=1e-9)


@pytest.fixture
def grid_file(tmp_path):
    """GRV94 LO in the format of LHAPDF 6."""
    x, q = np.union1d(np.geomspace(1e-5, 1, 150), np.linspace(0.02, 1, 150)), np.geomspace(2, 2000, 30)
    with np.errstate(divide="ignore"):
        values = np.array([[float(grv94lo_gluon(np.array(min(a, 1 - 1e-12)), b)) for b in q] for a in x])
    path = tmp_path / "grv_0000.dat"
    lines = ["PdfType: central", "Format: lhagrid1", "---"]
    lines += [" ".join(f"{v:.10e}" for v in row) for row in (x, q)] + ["21"]
    path.write_text("\n".join([*lines, *(f"{v:.10e}" for v in values.ravel()), "---", ""]))
    return path


def test_grid_files_are_interpolated(grid_file):
    density = get_density(str(grid_file), 21, 91.188)
    x = np.geomspace(1e-3, 0.7, 50)
    np.testing.assert_allclose(density(x, 91.188), grv94lo_gluon(x, 91.188), rtol=1e-3)
    with pytest.raises(AmpsureError, match="no parton 2"):
        get_density(str(grid_file), 2, 91.188)
    with pytest.raises(AmpsureError, match="scales of 2 to 2000 GeV"):
        get_density(str(grid_file), 21, 1e5)
    with pytest.raises(AmpsureError, match="leaves the grid"):
        density(np.array([1e-7]), 91.188)


def test_grid_file_gives_the_same_cross_section(grid_file):
    runs = [ampsure.generate("gg_yyg", 500, seed=4, sampling="rambo", density=d) for d in ("grv94lo", str(grid_file))]
    sigma = [run.provenance["generation"]["cross_section"] for run in runs]
    assert sigma[1] == pytest.approx(sigma[0], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "pdg_id", "words"),
    [("cteq5l", 2, "gluons only"), ("nnpdf", 21, "neither one of"), (__file__, 21, "not a readable")],
)
def test_bad_densities(name, pdg_id, words):
    with pytest.raises(AmpsureError, match=words):
        get_density(name, pdg_id, 91.188)


def test_cuts_do_what_they_say(events):
    process, p = events.process, events.momenta
    pt, eta = transverse_momentum(p), abs(pseudorapidity(p))
    assert (pt[:, 4] > 20).all()
    assert (eta[:, 4] < 5).all()
    assert (pt[:, 2:4].max(1) > 40).all()
    assert (pt[:, 2:4].min(1) > 30).all()
    assert (eta[:, 2:4] < 2.37).all()
    for i, j in ((2, 3), (2, 4), (3, 4)):
        assert (delta_r(p[:, i], p[:, j]) > 0.4).all()
    assert Cuts().passed(p, process).all()
    for cut in ({"pt_jet": 30}, {"eta_jet": 1}, {"pt_photon": (60, 30)}, {"pt_photon": (40, 35)}, {"delta_r": 1.5}):
        assert 0 < Cuts(**cut).passed(p, process).mean() < 1
    assert not Cuts(pt_photon=(40.0,)).passed(p, process).all()  # one threshold for both
    for cuts in (Cuts(pt_jet=30), Cuts(delta_r=1.5), Cuts(pt_photon=(60, 30)), Cuts(pt_photon=())):
        np.testing.assert_array_equal(cuts.passed(torch.from_numpy(p), process).numpy(), cuts.passed(p, process))


def test_settings_are_strict():
    assert PRESETS["lhc"].energy == 13000
    assert get_settings("benchmark", cuts={"pt_jet": 25}).cuts == Cuts(pt_jet=25)
    with pytest.raises(AmpsureError, match=r"cuts\.pt_jets.*did you mean 'cuts.pt_jet'"):
        get_settings(cuts={"pt_jets": 25})
    with pytest.raises(AmpsureError, match="energy"):
        get_settings(energy=-1)
    with pytest.raises(AmpsureError, match="known are benchmark, lhc"):
        get_settings("tevatron")


def _three_body_volume(s):
    """Massless three-body phase space, s/(2 (4 pi)^3 (2 pi)^3 ...): (2 pi)^(4-9) pi^2/8 s."""
    return (2 * np.pi) ** -5 * np.pi**2 / 8 * s


def test_rambo_fills_the_known_volume():
    process = get_process("gg_yyg")
    space = RamboSpace(process, get_settings(energy=500.0, density=None))
    momenta, weight = space(np.random.default_rng(1).random((1000, space.dimension)))
    np.testing.assert_allclose(weight * (2 * np.pi) ** -5, _three_body_volume(500.0**2), rtol=1e-9)
    assert not ampsure.kinematics.find_invalid(momenta, process.masses, beams_along_z=True)[0].any()


@pytest.mark.parametrize("masses", [(0, 0, 0), (173.0, 173.0, 0), (80.0, 91.0, 125.0)])
def test_chili_and_rambo_agree_on_any_masses(masses):
    """The same toy cross section by two mappings, for massive legs and a flat amplitude."""
    ids = (25 if mass else 22 for mass in masses)  # what is massless has to be cut on
    toy = Process("toy", (21, 21, *ids), (0, 0, *masses), exact=lambda p: np.ones(len(p)) * 1e-6)
    settings = get_settings(energy=2000.0)
    found = []
    for space in (ChiliSpace(toy, settings), RamboSpace(toy, settings)):
        weights = CrossSection(toy, settings, space)(np.random.default_rng(2).random((100_000, space.dimension)))[0]
        found.append((weights.mean(), weights.std() / np.sqrt(len(weights))))
    (chili, chili_error), (rambo, rambo_error) = found
    assert rambo_error < 0.05 * rambo
    assert abs(chili - rambo) < 4 * np.hypot(chili_error, rambo_error)


def test_luminosity_against_quadrature():
    """A constant amplitude above a mass: the integral over momentum fractions is known in one dimension."""
    lowest = 30.0
    toy = Process("toy3", (21, 21, 22, 22, 22), (0,) * 5, exact=lambda p: 1.0 * (invariant_mass(p[:, 2:]) > lowest))
    settings = get_settings(energy=1000.0, cuts={"pt_jet": 0, "pt_photon": (1e-3,), "eta_photon": 100, "delta_r": 0})
    space = RamboSpace(toy, settings)
    weights = CrossSection(toy, settings, space)(np.random.default_rng(3).random((200_000, space.dimension)))[0]

    def luminosity(log_tau):
        tau = np.exp(log_tau)

        def product(y):
            x1, x2 = np.sqrt(tau) * np.exp(y), np.sqrt(tau) * np.exp(-y)
            return float(grv94lo_gluon(np.array(x1), 91.188) * grv94lo_gluon(np.array(x2), 91.188))

        edge = -0.5 * log_tau * (1 - 1e-9)
        return integrate.quad(product, -edge, edge, limit=200)[0]

    low = 2 * np.log(lowest / 1000.0)
    # dx1 dx2 f f = dlog(tau) dy (x f)(x f); phase space / flux is the same at all energies
    integral = integrate.quad(luminosity, low, -1e-9, limit=200, epsrel=1e-6)[0]
    constant = 0.3893793721e9 / 6 * _three_body_volume(1.0) / 2
    assert abs(weights.mean() - constant * integral) < 4 * weights.std() / np.sqrt(len(weights))


@given(arrays(float, st.integers(1, 50), elements=st.floats(1e-3, 1e3)), st.floats(1e-4, 0.5))
def test_maximum_weight_leaves_exactly_the_excess(weights, share):
    excess = share * weights.sum()
    maximum = maximum_weight(weights, excess)
    assert np.maximum(weights - maximum, 0).sum() == pytest.approx(excess, rel=1e-9)
    assert unweighting_efficiency(weights, maximum) == pytest.approx(
        (1 - share) * weights.mean() / maximum, rel=1e-9
    )  # what is kept, in units of the maximum


def test_flow_density_is_the_one_it_samples_from():
    """Inverse density as a weight: volumes come out right whatever the flow has learned."""
    process = get_process("gg_yyg")
    settings = get_settings()
    cross_section = CrossSection(process, settings, ChiliSpace(process, settings))
    sampler = FlowSampler(cross_section, seed=1)
    assert len(sampler._mirrors) == 2
    for _ in sampler.adapt([20_000], lambda points: cross_section(points)[0]):
        pass
    points, inverse_density = sampler.draw(100_000, np.random.default_rng(1))
    assert 0 < points.min() <= points.max() < 1
    for observable, expected in ((np.ones(len(points)), 1.0), (points[:, 2] < 0.3, 0.3), (points[:, 6] ** 2, 1 / 3)):
        values = inverse_density * observable
        assert abs(values.mean() - expected) < 5 * values.std() / np.sqrt(len(values))


def test_adaptation_grows_with_the_sample():
    sizes = [sum(training_rounds(n)) for n in (10, 1000, 20_000, 100_000, 1_100_000)]
    assert sizes == sorted(sizes)
    assert sizes[-1] < 800_000


def test_same_seed_same_events_whatever_the_workers(events):
    threads = torch.get_num_threads()
    alone = ampsure.generate("gg_yyg", 2000, seed=3, workers=1)
    np.testing.assert_array_equal(alone.momenta, events.momenta)
    np.testing.assert_array_equal(alone.weights, events.weights)
    assert torch.get_num_threads() == threads
    other = ampsure.generate("gg_yyg", 200, seed=4, sampling="rambo")
    assert not np.array_equal(
        other.momenta[:10], ampsure.generate("gg_yyg", 200, seed=5, sampling="rambo").momenta[:10]
    )


def test_amplitudes_are_exact(events, flat_events):
    for sample in (events, flat_events):
        np.testing.assert_allclose(sample.amplitude, get_process("gg_yyg").amplitude(sample.momenta), rtol=1e-12)
        assert not sample.find_invalid()[0].any()


@pytest.mark.parametrize("seed", [1, 2])
def test_cross_section_with_and_without_unweighting(seed):
    reference, error = REFERENCES["1 TeV, GRV94 LO", "Chili + VEGAS"]
    for unweight in (True, False):
        found = ampsure.generate("gg_yyg", 3000, seed=seed, unweight=unweight).provenance["generation"]
        distance = found["cross_section"] - reference
        assert abs(distance) < 3 * np.hypot(found["cross_section_error"], error)


def test_lhc_cross_section():
    reference, error = REFERENCES["13 TeV, GRV94 LO", "RAMBO"]
    found = ampsure.generate("gg_yyg", 2000, preset="lhc", density="grv94lo").provenance["generation"]
    assert abs(found["cross_section"] - reference) < 3 * np.hypot(found["cross_section_error"], error)


def test_unweighted_and_weighted_events_have_the_same_distributions(events):
    weighted = ampsure.generate("gg_yyg", 20_000, seed=9, unweight=False)
    for observable in ("final_state_mass", "amplitude"):
        edges = np.quantile(getattr(events, observable), np.linspace(0, 1, 9))
        edges[0], edges[-1] = 0, np.inf
        counts = np.histogram(getattr(events, observable), edges)[0]
        sums = np.histogram(getattr(weighted, observable), edges, weights=weighted.weights)[0]
        squares = np.histogram(getattr(weighted, observable), edges, weights=weighted.weights**2)[0]
        scale = len(events) / weighted.weights.sum()
        pulls = (counts - scale * sums) / np.sqrt(counts + scale**2 * squares)
        assert stats.chi2.sf((pulls**2).sum(), len(pulls) - 1) > 1e-3


def test_overweight_events_keep_their_excess(events):
    summary = events.provenance["generation"]
    assert 0 < summary["overweight_share"] <= 1e-3 * (1 + 1e-9)
    assert (events.weights >= 1).all()
    loose = ampsure.generate("gg_yyg", 2000, seed=3, overweight=0.05)
    assert (loose.weights > 1).sum() > 10
    assert loose.provenance["generation"]["unweighting_efficiency"] > 2 * summary["unweighting_efficiency"]
    assert loose.effective_size == pytest.approx(loose.provenance["generation"]["effective_size"])
    # the excess in the file is the excess of the whole run, within the statistics of a few overweight events
    excess = (loose.weights - 1).sum() / loose.weights.sum()
    n_over = (loose.weights > 1).sum()
    assert abs(excess - 0.05) < 6 * 0.05 / np.sqrt(n_over)


def test_two_to_two_processes_are_generated():
    """sigma(g g -> X X) of a constant amplitude, adaptive against a two-dimensional quadrature."""
    mass, constant = 173.0, 1e-4
    toy = Process("pair", (21, 21, 6, -6), (0, 0, mass, mass), exact=lambda p: np.full(len(p), constant))
    found = ampsure.generate(toy, 2000, seed=1, unweight=False, energy=2000.0).provenance["generation"]

    def integrand(y, log_tau):
        tau = np.exp(log_tau)
        x1, x2 = np.sqrt(tau) * np.exp(y), np.sqrt(tau) * np.exp(-y)
        if max(x1, x2) >= 1:
            return 0.0
        s = tau * 2000.0**2
        partonic = constant / (2 * s) * np.sqrt(1 - 4 * mass**2 / s) / (8 * np.pi)
        return float(grv94lo_gluon(np.array(x1), 91.188) * grv94lo_gluon(np.array(x2), 91.188)) * partonic

    low = 2 * np.log(2 * mass / 2000.0)
    expected = (
        integrate.dblquad(integrand, low, 0, lambda t: 0.5 * t, lambda t: -0.5 * t, epsrel=1e-4)[0] * 0.3893793721e9
    )
    assert abs(found["cross_section"] - expected) < 4 * found["cross_section_error"] + 1e-3 * expected


def test_flat_partonic_sample_has_fixed_energy():
    events = ampsure.generate("gg_yyg", 300, sampling="rambo", density=None, energy=1000.0)
    np.testing.assert_allclose(events.final_state_mass, 1000.0, rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 0}, "positive"),
        ({"seed": -1}, "seed"),
        ({"sampling": "vegas"}, "adaptive"),
        ({"overweight": 0.0}, "between 0 and 1"),
        ({"preset": "lep"}, "known are"),
        ({"process": "gg_hh"}, "Unknown process"),
        ({"density": None}, "rambo"),
        ({"couplings": {"alphas": 0.1}}, "its options are: alpha_s"),
        ({"couplings": {"identical": True}}, "part of the cross section"),
        ({"couplings": {"alpha_s": 0.0}}, "positive cross section"),
        ({"couplings": {"alpha_s": 1e200}}, "too large"),
        ({"factorization_scale": 0.2}, "scales of 0.64 to 1000"),
        ({"workers": 0}, "workers"),
        ({"n": 1.5}, "integer"),
        ({"cuts": {"pt_jet": 0}}, "no threshold"),
        ({"process": Process("s", (21, 21, 22, 22), (0,) * 4, exact=lambda p: -p[:, 0, 0])}, "non-negative"),
        ({"process": Process("t", (21, 21, 22, 22), (0,) * 4, exact=lambda p: p[:, :1, 0])}, "one finite"),
        ({"energy": 60.0, "sampling": "rambo"}, "positive cross section"),
        ({"energy": 60.0}, "positive cross section"),
        ({"process": Process("w", (21, 21, 25), (0, 0, 125.0))}, "No exact amplitude"),
        ({"process": Process("w", (21, 21, 25), (0, 0, 125.0), exact=len)}, "two or more outgoing"),
        ({"process": Process("z", (21, 21, 1, -1), (0,) * 4, exact=len), "sampling": "rambo"}, "3 to 12"),
        ({"process": Process("m", (6, -6, 22, 22), (173.0, 173.0, 0, 0), exact=len)}, "massless incoming"),
    ],
)
def test_bad_requests(arguments, words):
    with pytest.raises(AmpsureError, match=words):
        ampsure.generate(**{"process": "gg_yyg", "n": 10, **arguments})
