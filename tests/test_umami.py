"""The C++ library against `predict`: every method, all features, both targets; its interfaces and what they refuse."""

from __future__ import annotations

import ctypes
import pickle
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ampsure
from ampsure import AmpsureError, Events, InvalidEventsError, Process, fit, register_features
from ampsure.config import METHODS
from ampsure.deploy import Library, distill, export_umami
from ampsure.deploy import umami as umami_export
from ampsure.deploy.agreement import OUTPUTS, phase_space_points
from ampsure.noise import NoiseProfile
from ampsure.preprocessing import get_features
from tests.test_events import two_to_two
from validation import umami

SMALL = {"network": {"hidden": (40, 40, 40)}}
QUICK = "-O1"  # compiles in a third of the time
EXAMPLE = Path(__file__).parent.parent / "docs/examples/plugin.cpp"


def agree(surrogate, momenta, folder, rtol=1e-6, **options):
    """The library predicts what the surrogate predicts, inside and outside its domain."""
    library = Library(export_umami(surrogate, folder, optimize=QUICK, **options))
    found, expected = library.predict(momenta), surrogate.predict(momenta)
    np.testing.assert_array_equal(found.in_domain, expected.in_domain)
    for name in OUTPUTS[:-1]:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=rtol, err_msg=name)
    return library


def agree_rounded(surrogate, momenta, folder, rtol=4e-6):
    """The same in float32, but for rounding.

    Members differ less from each other than from zero: the error of sigma_stat is one of what they predict.
    """
    surrogate = surrogate.in_precision("float32")
    library = Library(export_umami(surrogate, folder, optimize=QUICK))
    found, expected = library.predict(momenta), surrogate.predict(momenta)
    np.testing.assert_array_equal(found.in_domain, expected.in_domain)
    inside = expected.in_domain
    size = np.abs(expected.amplitude[inside]) + expected.sigma_tot[inside]
    for name in OUTPUTS[:-1]:
        a, b = getattr(found, name), getattr(expected, name)
        assert np.isfinite(a).all()
        error = np.abs(a - b)[inside] / (size if name != "sigma_syst" else np.abs(b[inside]))
        assert error.max() < rtol, name
        assert np.sqrt(np.square(error).mean()) < rtol / 4, name


@pytest.fixture(scope="module")
def momenta(events):
    """Points inside and outside the domain."""
    return np.concatenate([events.momenta, 0.5 * events.momenta[:500], phase_space_points(events.process, 1500)])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_agrees_with_predict(method, events, momenta, tmp_path):
    posterior = {"samples": 5} if method == "bayesian" else {}
    surrogate = fit(events[:1200], method, config={**SMALL, "posterior": posterior}, epochs=3, seed=1)
    assert 1000 < surrogate.predict(momenta).in_domain.sum() < 3000
    agree(surrogate, momenta, tmp_path / "library")
    agree_rounded(surrogate, momenta, tmp_path / "fast")


@pytest.fixture(scope="module")
def calibrated(events):
    config = {
        "network": {"hidden": (24, 24), "residual": True},
        "posterior": {"name": "ensemble", "members": 3, "systematic": "held-out"},
        "training": {"stages": 2},
    }
    return fit(events, "repulsive", config=config, epochs=4, seed=1)


def test_stages_and_held_out_sigma_agree_with_predict(calibrated, momenta, tmp_path):
    """The calibration sees the logarithm of a variance of members, which float32 knows to 1e-4."""
    assert calibrated.calibration.scale != 1
    agree(calibrated, momenta, tmp_path / "library", rtol=1e-10)
    agree_rounded(calibrated, momenta, tmp_path / "fast", rtol=2e-5)


def test_holes_are_outside_the_domain_but_for_their_edges(calibrated, events, tmp_path):
    raw = get_features("folded")(torch.from_numpy(events.momenta), events.process)
    edges = raw[:, 3].sort().values[[600, 1400]]
    holes = torch.tensor([[3, *edges]], dtype=torch.float64)
    pierced = replace(calibrated, standardization=replace(calibrated.standardization, holes=holes))
    found = agree(pierced, events.momenta, tmp_path / "library", rtol=1e-10).predict(events.momenta)
    before = calibrated.predict(events.momenta)
    lost = before.in_domain & ~found.in_domain
    np.testing.assert_array_equal(lost, before.in_domain & ((raw[:, 3] > edges[0]) & (raw[:, 3] < edges[1])).numpy())
    assert np.median(found.sigma_stat[lost] / before.sigma_stat[lost]) > 1.2  # errors of members are one there


def test_noise_in_narrow_ranges_agrees_with_predict(calibrated, events, tmp_path):
    ranges = torch.tensor([[3, -0.2, 0.1, 0.02], [0, 0.3, 0.31, 0.05]], dtype=torch.float64)
    noisy = replace(calibrated, noise=NoiseProfile(ranges))
    found = agree(noisy, events.momenta, tmp_path / "library", rtol=1e-10).predict(events.momenta)
    larger = found.sigma_syst > 1.01 * calibrated.predict(events.momenta).sigma_syst
    assert 20 < larger.sum() < len(events) - 20


def test_distilled_surrogates_agree_with_predict(calibrated, events, momenta, tmp_path):
    student = distill(calibrated, events, epochs=3)
    assert student.likelihood.name == "distilled"
    agree(student, momenta, tmp_path / "library", rtol=1e-10)
    agree_rounded(student, momenta, tmp_path / "fast")


@pytest.mark.parametrize("features", ["invariants", "momenta", "momenta+invariants"])
def test_all_features_agree_with_predict(features, events, tmp_path):
    config = {"features": {"inputs": features}, "network": {"hidden": (16, 16)}}
    surrogate = fit(events, "heteroscedastic", config=config, epochs=2, seed=1)
    agree(surrogate, events.momenta, tmp_path / "library", rtol=1e-10)


@pytest.mark.parametrize("activation", ["silu", "tanh", "relu", "leaky_relu", "softplus"])
def test_other_activations_agree_with_predict(activation, events, tmp_path):
    config = {"network": {"hidden": (20, 33), "activation": activation}}
    surrogate = fit(events, "heteroscedastic", config=config, epochs=1, seed=1)
    agree(surrogate, events.momenta, tmp_path / "library", rtol=1e-10)


def test_signed_amplitudes_and_massive_legs_agree_with_predict(tmp_path):
    """The asinh target, precisions added, no cuts, legs with masses: a process of somebody else."""
    momenta = two_to_two(2000, (0, 0, 173.0, 80.4))
    events = Events(momenta, momenta[:, 2, 3] / 100, Process("theirs", (0, 0, 6, 24), (0, 0, 173.0, 80.4)))
    config = {
        **SMALL,
        "features": {"target": "asinh"},
        "data": {"signed": True},
        "posterior": {"systematic": "inverse-variance"},
    }
    surrogate = fit(events, "repulsive", config=config, epochs=5, seed=1)
    agree(surrogate, momenta, tmp_path / "library", rtol=1e-10, portable=True)


def test_modes_of_wide_mixtures_are_the_same(events, tmp_path):
    """Many components far apart: the search finds the same mode."""
    config = {"network": {"hidden": (16,)}}
    for name in ("mixture", "evidential_mixture"):
        options = {**config, "likelihood": {"name": name, "k": 5}}
        surrogate = fit(events, None, config=options, epochs=2, seed=1)
        surrogate.network.weights[-1][..., :5] *= 20.0  # centres
        surrogate.network.weights[-1][..., -5:] *= 5.0  # weights
        agree(surrogate, events.momenta, tmp_path / name, rtol=1e-7)


@pytest.fixture(scope="module")
def trained(events):
    config = {"network": {"hidden": (32, 32)}, "posterior": {"members": 2}}
    return fit(events, "repulsive", config=config, epochs=30, batch_size=128, seed=1)


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    return export_umami(trained, tmp_path_factory.mktemp("umami") / "library")


def test_batches_of_any_size_and_threads_give_the_same_numbers(exported, trained, events):
    """One point, full tiles and blocks and their remainders; several handles at once."""
    momenta = events.momenta[:1000]
    whole = Library(exported).predict(momenta)
    for size in (0, 1, 7, 12, 13, 239, 241, 500):
        part = Library(exported).predict(momenta[:size])
        assert len(part.amplitude) == size
        np.testing.assert_allclose(part.amplitude, whole.amplitude[:size], rtol=1e-13)
    libraries = [Library(exported) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda library: [library.predict(momenta) for _ in range(20)][-1], libraries))
    for result in results:
        np.testing.assert_array_equal(result.amplitude, whole.amplitude)
        np.testing.assert_array_equal(result.sigma_tot, whole.sigma_tot)
    with pytest.raises(InvalidEventsError, match="shape"):
        Library(exported).predict(momenta[:, :4])


def test_copies_have_handles_of_their_own(exported, events):
    momenta, first = events.momenta[:20], Library(exported)
    expected = first.predict(momenta).amplitude
    copies = copy(first), pickle.loads(pickle.dumps(first))
    assert len({first._handle.value, *(again._handle.value for again in copies)}) == 3
    del first
    for again in copies:
        np.testing.assert_array_equal(again.predict(torch.from_numpy(momenta).requires_grad_()).amplitude, expected)
    with pytest.raises(InvalidEventsError, match="real numbers"):
        again.predict("momenta")


def test_an_export_replaces_another_even_while_that_is_in_use(trained, events, tmp_path):
    other = deepcopy(trained)
    other.network.biases[-1][..., 0] += 1.0
    momenta = events.momenta[:50]
    old = agree(trained, events.momenta, tmp_path / "library")
    before = old.predict(momenta).amplitude
    agree(other, events.momenta, tmp_path / "library")
    np.testing.assert_array_equal(old.predict(momenta).amplitude, before)


def test_points_that_are_no_numbers_stay_alone(exported, events):
    momenta = events.momenta[:30].copy()
    momenta[3, 2, 1] = np.nan
    momenta[7, 0, 0] = np.inf
    momenta[11, 3] = momenta[11, 2]  # collinear
    found, expected = Library(exported).predict(momenta), Library(exported).predict(events.momenta[:30])
    bad = np.isin(np.arange(30), (3, 7, 11))
    for name in ("amplitude", "sigma_syst", "sigma_stat", "sigma_tot"):
        assert np.isnan(getattr(found, name)[bad]).all()
        np.testing.assert_array_equal(getattr(found, name)[~bad], getattr(expected, name)[~bad])
    assert not found.in_domain[bad].any()


class Umami:
    """The C interface, called as MadGraph does."""

    def __init__(self, library):
        self.functions = ctypes.CDLL(str(library))
        self.handle = ctypes.c_void_p()
        assert self.functions.umami_initialize(ctypes.byref(self.handle), b"no card") == 0

    def __call__(self, count, stride, offset, inputs, outputs, handle=True):
        def arguments(items):
            keys = (ctypes.c_int * max(len(items), 1))(*(key for key, _ in items))
            pointers = (array.ctypes.data if array is not None else None for _, array in items)
            return ctypes.c_size_t(len(items)), keys, (ctypes.c_void_p * max(len(items), 1))(*pointers)

        sizes = (ctypes.c_size_t(n) for n in (count, stride, offset))
        handle = self.handle if handle else None
        return self.functions.umami_matrix_element(handle, *sizes, *arguments(inputs), *arguments(outputs))


def test_umami_takes_strides_and_offsets(exported, trained, events):
    library = Umami(exported)
    stride, offset, count = 500, 37, 300
    momenta = np.full((4, 5, stride), np.nan)
    momenta[..., offset : offset + count] = events.momenta[:count].transpose(2, 1, 0)
    out = [np.full(stride, -1.0), np.full(stride, -1.0), *(np.full(stride, -1, np.int32) for _ in range(3))]
    ignored = np.zeros(stride)
    inputs = [(0, momenta), (1, ignored), (2, ignored), (3, ignored), (4, ignored), (5, ignored)]
    assert library(count, stride, offset, inputs, list(enumerate(out))) == 0
    inside = slice(offset, offset + count)
    expected = trained.predict(events.momenta[:count])
    np.testing.assert_allclose(out[0][inside], expected.amplitude, rtol=1e-12)
    np.testing.assert_array_equal(out[1], out[0])
    for index in out[2:]:
        assert (index[inside] == 0).all()
    for array in out:
        assert (np.delete(array, np.arange(stride)[inside]) == -1).all()
    assert library.functions.umami_free(library.handle) == 0


def test_umami_answers_what_it_cannot_do_with_its_codes(exported):
    library = Umami(exported)
    functions, momenta, out = library.functions, np.ones((4, 5, 8)), np.zeros(8)
    assert library(8, 8, 0, [(0, momenta)], [(0, out)], handle=False) == 1
    assert library(8, 8, 1, [(0, momenta)], [(0, out)]) == 1  # beyond the stride
    assert library(8, 8, 0, [(0, momenta)], [(0, None)]) == 1
    assert library(8, 8, 0, [(0, momenta), (6, out)], [(0, out)]) == 3
    assert library(8, 8, 0, [(0, momenta), (-1, out)], [(0, out)]) == 3
    assert library(8, 8, 0, [(0, momenta)], [(5, out)]) == 4
    assert library(8, 8, 0, [(1, out)], [(0, out)]) == 6
    assert library(0, 0, 0, [(0, momenta)], [(0, out)]) == 0
    assert functions.umami_set_parameter(library.handle, b"aS", ctypes.c_double(1), ctypes.c_double(0)) == 2
    assert functions.umami_get_parameter(library.handle, b"aS", None, None) == 2
    value = ctypes.c_int(-1)
    assert [functions.umami_get_meta(key, ctypes.byref(value)) or value.value for key in range(5)] == [0, 5, 1, 1, 1]
    assert functions.umami_get_meta(5, ctypes.byref(value)) == 5
    assert functions.umami_get_meta(0, None) == 1
    flags, count = ctypes.POINTER(ctypes.c_bool)(), ctypes.c_int()
    for name, expected in (
        ("supported_inputs", [True] * 6),
        ("required_inputs", [True, *[False] * 5]),
        ("supported_outputs", [True] * 5),
    ):
        function = getattr(functions, f"umami_{name}")
        assert function(ctypes.byref(flags), ctypes.byref(count)) == 0
        assert flags[: count.value] == expected
        assert function(None, ctypes.byref(count)) == 1
    assert functions.umami_initialize(None, b"") == 1
    assert functions.umami_free(None) == 1
    assert functions.umami_free(library.handle) == 0


def test_an_integrator_meets_no_enormous_matrix_elements(trained, flat_events, tmp_path):
    """A width that means nothing is no more than that of all amplitudes, and UMAMI gives what `predict` gives."""
    wide = deepcopy(trained)
    wide.network.biases[-1][..., 1] += 20.0
    library = Umami(export_umami(wide, tmp_path / "library", optimize=QUICK))
    expected, median = (wide.predict(flat_events.momenta, linear=linear).amplitude for linear in (False, True))
    assert (expected < 1.01 * np.exp(wide.target.scale**2) * median).all()
    n = len(flat_events)
    momenta, out = np.ascontiguousarray(flat_events.momenta.transpose(2, 1, 0)), np.empty(n)
    assert library(n, n, 0, [(0, momenta)], [(0, out)]) == 0
    np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_madspace_integrates_a_surrogate_and_writes_its_events(exported, trained, events, tmp_path):
    """Both photons above 40 GeV, which is part of what was learned."""
    found = umami.integrate(exported, tmp_path, 500, pt_photon=40.0)
    assert abs(found.ratio - 1) < 0.2  # learned from 1400 events
    cuts = umami.BENCHMARK.cuts.model_copy(update={"pt_photon": (40.0,)})
    share = cuts.passed(events.momenta, events.process).mean()
    expected = events.provenance["generation"]["cross_section"] * share
    uncertainty = np.hypot(expected * np.sqrt((1 / share - 1) / len(events)), found.error)
    assert abs(found.cross_section / found.ratio - expected) < 4 * uncertainty
    written = ampsure.load(found.lhe, process="gg_yyg")
    assert len(written) == 500
    assert cuts.passed(written.momenta, written.process).all()


def test_the_example_of_the_documentation_compiles_and_runs(exported, trained, events, tmp_path):
    assert EXAMPLE.read_text() in (EXAMPLE.parent.parent / "deploy.md").read_text()
    folder = exported.parent
    command = ["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", EXAMPLE, "-I", folder, "-L", folder]
    command += ["-lampsure_surrogate", f"-Wl,-rpath,{folder}", "-o", tmp_path / "plugin"]
    subprocess.run(command, check=True)
    text = "\n".join(" ".join(map(repr, event.ravel().tolist())) for event in events.momenta[:20])
    result = subprocess.run([tmp_path / "plugin"], input=text, capture_output=True, text=True, check=True)
    first, *lines = result.stdout.splitlines()
    assert first == "# gg_yyg, 5 legs, 2 networks"
    expected = trained.predict(events.momenta[:20])
    assert len(lines) == 20
    trusted = expected.in_domain & (expected.sigma_tot < 0.5 * expected.amplitude)
    assert trusted.any()
    for line, good, amplitude, sigma in zip(lines, trusted, expected.amplitude, expected.sigma_tot, strict=True):
        if good:
            np.testing.assert_allclose([float(v) for v in line.split()], [amplitude, sigma], rtol=1e-5)
        else:
            assert "exact" in line
    plain = tmp_path / "plain.c"
    plain.write_text('#include "ampsure_surrogate.h"\nint main(void) { return ampsure_legs() != 5; }\n')
    command = ["cc", "-std=c99", "-Wall", "-pedantic", "-Werror", plain, "-I", folder, "-L", folder]
    command += ["-lampsure_surrogate", f"-Wl,-rpath,{folder}", "-o", tmp_path / "plain"]
    subprocess.run(command, check=True)
    subprocess.run([tmp_path / "plain"], check=True)


@pytest.mark.parametrize(
    "name",
    [
        '"; } int evil = system("touch pwned"); namespace x { char y[] = "',
        '??/" \\\n#error\n%s */ //\\',
        "gg\0\u2192 γγ\x7f",
    ],
)
def test_hostile_names_stay_names(name, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile = replace(trained, process=replace(trained.process, name=name, unit=name[::-1]))
    library = export_umami(hostile, tmp_path / "library", optimize="-O0")
    texts = r'constexpr char process\[\] = "[\w \\]*", unit\[\] = "[\w \\]*";'
    assert re.search(rf"^{texts}$", (tmp_path / "library/model.h").read_text(), re.MULTILINE)
    functions = ctypes.CDLL(str(library))
    functions.ampsure_process.restype = functions.ampsure_unit.restype = ctypes.c_char_p
    expected = name.encode("utf-8", "replace").split(b"\0")[0]
    assert functions.ampsure_process() == expected
    assert not (tmp_path / "pwned").exists()
    assert not hasattr(functions, "evil")


def test_what_cannot_be_exported_is_said_in_a_sentence_and_leaves_nothing(trained, events, tmp_path, monkeypatch):
    folder = tmp_path / "library"
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(AmpsureError, match="no C\\+\\+ compiler 'no-such-compiler'"):
        export_umami(trained, folder)
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(AmpsureError, match="failed"):
        export_umami(trained, folder)
    register_features("summed", lambda momenta, process: momenta.sum(1))
    theirs = fit(events[:200], "mse", config={**SMALL, "features": {"inputs": "summed"}}, epochs=1, seed=1)
    with pytest.raises(AmpsureError, match="'summed' are not built in"):
        export_umami(theirs, folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(AmpsureError, match="is a file"):
        export_umami(trained, tmp_path / "file")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("")
    with pytest.raises(AmpsureError, match="thesis"):
        export_umami(trained, tmp_path / "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine"]
    with pytest.raises(AmpsureError, match="not a library"):
        Library(tmp_path / "file")


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: {"target": replace(s.target, mean=s.target.mean + 1e-4)},
        lambda s: {"calibration": replace(s.calibration, scale=1.001 * s.calibration.scale)},
        lambda s: {"cuts": s.cuts.model_copy(update={"pt_jet": 2 * s.cuts.pt_jet})},
    ],
    ids=["target", "calibration", "cuts"],
)
def test_a_library_that_differs_is_not_written(wrong, precision, calibrated, tmp_path, monkeypatch):
    written = umami_export._model
    monkeypatch.setattr(umami_export, "_model", lambda s, weights: written(replace(s, **wrong(s)), weights))
    with pytest.raises(AmpsureError, match="library differs from the surrogate's predictions"):
        export_umami(calibrated.in_precision(precision), tmp_path / "library", optimize=QUICK)
    assert not list(tmp_path.iterdir())


def test_command_line_exports_and_make_builds_the_same(run, trained, events, tmp_path, monkeypatch):
    trained.save(tmp_path / "run")
    code, out, err = run("export", "run", "--format", "umami", "-o", "a", "--no-build")
    assert (code, err) == (0, "")
    assert "make" in out
    subprocess.run(["make", "-C", "a", "MARCH=", "OPTIMIZE=-O1"], check=True, capture_output=True)
    by_make = Library("a").predict(events.momenta[:50])
    code, out, _ = run("export", "run", "--format", "umami", "-o", "a")  # in place of the other
    assert code == 0
    assert "libampsure_surrogate.so" in out
    np.testing.assert_allclose(Library("a").predict(events.momenta[:50]).amplitude, by_make.amplitude, rtol=3e-6)
    code, _, _ = run("export", "run", "--format", "umami", "-o", "a", "--precision", "float64")
    assert code == 0
    np.testing.assert_allclose(
        Library("a").predict(events.momenta).amplitude, trained.predict(events.momenta).amplitude, rtol=1e-12
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "run"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, _, err = run("export", "run", "--format", "umami", "-o", "b")
    assert code == 2
    assert "compiler" in err
    assert not (tmp_path / "b").exists()
