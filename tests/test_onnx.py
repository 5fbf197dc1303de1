"""Exported graphs predict what the surrogate predicts, for every method, or are not written."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from scipy import special

import ampsure
from ampsure import AmpsureError, Events, fit, register_features
from ampsure.config import METHODS
from ampsure.deploy import agreement, export_onnx, float64
from ampsure.deploy.agreement import OUTPUTS, phase_space_points
from ampsure.deploy.tracing import BATCH, trace
from ampsure.kinematics import find_invalid
from ampsure.networks.mlp import ACTIVATIONS
from tests.test_events import two_to_two

onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")

SMALL = {"network": {"hidden": (12, 12), "residual": True}}


def small(**sections):
    return {**SMALL, **sections}


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(surrogate, momenta, tmp_path, precision="float64", rtol=1e-6):
    """Export, and compare all outputs; also of one event and of none."""
    path = tmp_path / "a.onnx"
    export_onnx(surrogate, path, precision=precision)
    graph = session(path)
    for part in (momenta, momenta[:1], momenta[:0]):
        found, expected = graph.run(OUTPUTS, {"momenta": part}), surrogate.predict(part)
        for name, values in zip(OUTPUTS, found, strict=True):
            assert values.shape == (len(part),)
            assert values.dtype == (bool if name == "in_domain" else np.float64)
            if name == "in_domain":
                np.testing.assert_array_equal(values, expected.in_domain)
            elif precision == "float64" or name == "amplitude":
                np.testing.assert_allclose(values, getattr(expected, name), rtol=rtol, err_msg=name)
    return graph


@pytest.fixture(scope="module")
def momenta(events):
    """5000 points inside and outside the domain."""
    points = np.concatenate([events.momenta, 0.5 * events.momenta[:500], phase_space_points(events.process, 2500)])
    assert len(points) == 5000
    return points


@pytest.fixture(scope="module")
def trained(events):
    return fit(events, "repulsive", config=small(posterior={"members": 2}), epochs=2, seed=1)


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method, events, momenta, tmp_path):
    samples = {"posterior": {"samples": 4}} if method == "bayesian" else {}
    surrogate = fit(events, method, config=small(**samples), epochs=2, seed=1)
    check(surrogate, momenta, tmp_path)
    inside = surrogate.predict(momenta).in_domain
    assert 1000 < inside.sum() < 4000


ENSEMBLE = {"name": "ensemble", "members": 3}


@pytest.mark.parametrize(
    "config",
    [
        *(small(posterior={**ENSEMBLE, "systematic": s}) for s in ("inverse-variance", "global-joint", "held-out")),
        small(posterior={**ENSEMBLE, "systematic": "held-out"}, training={"stages": 2}),
        small(posterior={"name": "variational", "samples": 3}, training={"stages": 2}),
        small(likelihood={"name": "mixture", "k": 3}, posterior={"systematic": "held-out"}, training={"stages": 2}),
        small(likelihood={"name": "mse"}, posterior={"systematic": "held-out"}),
        {"network": {"hidden": (12, 12), "precision": "float64"}, "training": {"stages": 2}},
        *(small(features={"inputs": name}) for name in ("invariants", "momenta", "momenta+invariants")),
        *({"network": {"hidden": (12, 12), "activation": name}} for name in ACTIVATIONS if name != "gelu"),
    ],
    ids=lambda config: "-".join(str(v) for section in config.values() for v in section.values()),
)
def test_every_setting(config, events, momenta, tmp_path):
    check(fit(events, "heteroscedastic", config=config, epochs=2, seed=1), momenta, tmp_path)


def test_amplitudes_that_change_sign(events, momenta, tmp_path):
    signed = Events(events.momenta, events.amplitude - np.median(events.amplitude), events.process)
    surrogate = fit(signed, "repulsive", config=small(features={"target": "asinh"}), epochs=2, seed=1)
    assert surrogate.cuts is None
    check(surrogate, momenta, tmp_path)


def test_massive_legs_and_no_symmetry(tmp_path):
    momenta = two_to_two(1000, (0, 0, 173.0, 80.4))
    events = Events(momenta, 1 + momenta[:, 2, 3] ** 2 / momenta[:, 0, 0] ** 2)
    check(fit(events, "heteroscedastic", config=SMALL, epochs=2, seed=1), momenta, tmp_path)


def test_points_that_are_no_numbers_stay_alone(trained, events, tmp_path):
    """Energies too, which no invariant looks at."""
    momenta = events.momenta[:30].copy()
    momenta[range(5), range(5), 0] = np.nan
    momenta[5, 2, 1], momenta[6, 0, 0] = np.inf, -np.inf
    export_onnx(trained, tmp_path / "a.onnx")
    *numbers, inside = session(tmp_path / "a.onnx").run(OUTPUTS, {"momenta": momenta})
    expected = trained.predict(events.momenta[:30])
    for name, values in zip(OUTPUTS, numbers, strict=False):
        assert np.isnan(values[:7]).all()
        np.testing.assert_allclose(values[7:], getattr(expected, name)[7:], rtol=1e-10)
    assert not inside[:7].any()
    np.testing.assert_array_equal(inside[7:], expected.in_domain[7:])


def test_float32_is_as_good_as_its_rounding(trained, events, tmp_path):
    momenta = events.momenta
    graph = check(trained, momenta, tmp_path, "float32", rtol=1e-5)
    assert graph.get_modelmeta().custom_metadata_map["precision"] == "float32"
    found = graph.run(["sigma_stat"], {"momenta": momenta})[0]
    assert np.median(np.abs(found / trained.predict(momenta).sigma_stat - 1)) < 1e-5


def test_the_file_says_what_it_is(trained, events, tmp_path):
    trained.save(tmp_path / "run")
    export_onnx(trained, tmp_path / "a.onnx", momenta=events.momenta[:100])
    model = onnx.load(tmp_path / "a.onnx")
    assert (model.producer_name, model.producer_version) == ("ampsure", ampsure.__version__)
    meta = {entry.key: entry.value for entry in model.metadata_props}
    description = json.loads((tmp_path / "run" / "surrogate.json").read_text())
    assert meta["format"] == "ampsure-onnx"
    assert meta["schema_version"] == "1"
    assert meta["ampsure_version"] == ampsure.__version__
    assert (meta["process"], meta["n_incoming"]) == ("gg_yyg", "2")
    assert json.loads(meta["pdg_ids"]) == [21, 21, 22, 22, 21]
    assert json.loads(meta["masses"]) == [0.0] * 5
    assert (meta["momentum_unit"], meta["amplitude_unit"]) == ("GeV", "GeV^-2")
    assert (meta["likelihood"], meta["posterior"], meta["members"]) == ("gaussian", "ensemble", "2")
    assert meta["weights_checksum"] == description["weights_checksum"]
    assert meta["data_checksum"] == description["provenance"]["data"]["checksum"]
    assert [(i.name, i.type.tensor_type.shape.dim[0].dim_param) for i in model.graph.input] == [("momenta", "N")]
    assert tuple(o.name for o in model.graph.output) == OUTPUTS


def test_features_of_the_users_own(events, momenta, tmp_path):
    def logs(momenta, process):
        energies = momenta[..., 0].log()
        return torch.cat([energies, torch.asinh(momenta[:, 2:, 3] / momenta[:, :1, 0])], dim=1)

    register_features("logs", logs)
    register_features("numpy", lambda p, process: torch.from_numpy(np.log(p.numpy()[..., 0])))
    register_features("exotic", lambda p, process: torch.special.i0(p[..., 0] / 1000))
    register_features("rounded", lambda p, process: torch.div(p[..., 0], 10.0, rounding_mode="floor"))
    register_features("in place", lambda p, process: p[..., 0].clone().log_())
    register_features("branches", lambda p, process: p[..., 0] / (2 if p.sum() > 0 else 1))
    check(fit(events, "mse", config=small(features={"inputs": "logs"}), epochs=1, seed=1), momenta, tmp_path)
    for name, words in (
        ("numpy", "does not follow"),
        ("exotic", "i0"),
        ("rounded", "'div'"),
        ("in place", "'log_'"),
        ("branches", "cannot be exported"),
    ):
        surrogate = fit(events, "mse", config=small(features={"inputs": name}), epochs=1, seed=1)
        with pytest.raises(AmpsureError, match=words):
            export_onnx(surrogate, tmp_path / "b.onnx")
    assert [f.name for f in tmp_path.iterdir()] == ["a.onnx"]


def test_a_graph_that_differs_is_not_written(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(
        float64.DECOMPOSITIONS, torch.ops.aten.gelu.default, lambda x: torch.relu(x) + 1e-5 * torch.tanh(x)
    )
    with pytest.raises(AmpsureError, match="differs from the surrogate's predictions"):
        export_onnx(trained, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_mixtures_may_differ_where_nothing_was_learned_alone(events, momenta):
    """Modes outside the domain, in a few points; none inside."""
    surrogate = fit(events, "mixture", config=SMALL, epochs=2, seed=1)
    inside = np.flatnonzero(surrogate.predict(momenta).in_domain)
    outside = np.flatnonzero(~surrogate.predict(momenta).in_domain)

    def wrong_at(where):
        def predict(points):
            p = surrogate.predict(points)
            p.amplitude[where[where < len(points)]] *= 1.001
            return p

        return predict

    agreement.check(wrong_at(outside[1:5]), surrogate, "graph", momenta)
    for where in (inside[1:2], outside):
        with pytest.raises(AmpsureError, match="graph differs"):
            agreement.check(wrong_at(where), surrogate, "graph", momenta)


def test_operations_without_a_kernel_are_named(trained, tmp_path, monkeypatch):
    monkeypatch.delitem(float64.DECOMPOSITIONS, torch.ops.aten.gelu.default)
    with pytest.raises(AmpsureError, match=r"cannot run.*Erf"):
        export_onnx(trained, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["onnx", "onnxruntime"])
def test_a_missing_extra_is_named(module, trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(AmpsureError, match=r"ampsure\[export\]"):
        export_onnx(trained, tmp_path / "a.onnx")


def test_precisions_have_names(trained, tmp_path):
    with pytest.raises(AmpsureError, match="'float16'"):
        export_onnx(trained, tmp_path / "a.onnx", precision="float16")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["repulsive-global", "bayesian"])
def test_a_surrogate_on_a_gpu_stays_there(method, events, momenta, tmp_path):
    surrogate = fit(events, method, config={**SMALL, "training": {"stages": 2}}, epochs=2, seed=1, device="cuda")
    check(surrogate, momenta, tmp_path)
    assert {p.device.type for stage in surrogate.earlier for p in stage.network.parameters()} == {"cuda"}
    assert surrogate.device.type == "cuda"


def test_command_line(run, trained, events, tmp_path):
    trained.save("run")
    code, out, err = run("export", "run", "--format", "onnx", "-o", "a.onnx")
    assert (code, err) == (0, "")
    assert "a.onnx" in out
    found = session("a.onnx").run(["amplitude"], {"momenta": events.momenta})[0]
    np.testing.assert_allclose(found, trained.predict(events.momenta).amplitude, rtol=1e-6)
    code, _, _ = run("export", "run", "--precision", "float32", "-o", "b.onnx")
    assert code == 0
    before = sorted(f.name for f in tmp_path.iterdir())
    for arguments, words in (
        (("run", "-o", "c.pt"), "written as .onnx"),
        (("run", "-o", "missing/c.onnx"), "no folder"),
        (("nothing", "-o", "c.onnx"), "no surrogate"),
        (("run", "--format", "onx", "-o", "c.onnx"), "onx"),
    ):
        code, _, err = run("export", *arguments)
        assert code == 2
        assert words in err
    assert sorted(f.name for f in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("function", "reference", "relative"),
    [
        (float64.gelu, lambda x: x * special.ndtr(x), False),
        (float64.softplus, lambda x: np.logaddexp(0, x), False),
        (float64.silu, lambda x: x * special.expit(x), False),
        (float64.expm1, np.expm1, True),
        (lambda x: float64.log1p(x.abs()), lambda x: np.log1p(np.abs(x)), True),
        (float64.asinh, np.arcsinh, False),
        (float64.sinh, np.sinh, True),
        (float64.cosh, np.cosh, True),
    ],
)
def test_functions_in_float64(function, reference, relative):
    """To 1e-14 as torch computes them, and to the same as onnxruntime does."""
    sizes = np.concatenate([np.geomspace(1e-12, 30, BATCH // 2), np.linspace(0, 12, BATCH // 2 + 1)])
    x = sizes * np.where(np.arange(BATCH) % 2, -1, 1)
    graph = trace(lambda x: [function(x)], torch.from_numpy(x), "x", ["y"])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    expected = reference(x)
    for found in (function(torch.from_numpy(x)).numpy(), session(model.SerializeToString()).run(None, {"x": x})[0]):
        error = np.abs(found - expected) / np.abs(expected).clip(1e-300 if relative else 1)
        assert error.max() < 1e-14


def test_points_to_compare_at_are_physical():
    for masses in ((0.0,) * 5, (0.0, 0.0, 173.0, 173.0, 125.0), (0.0, 0.0, 80.4, 0.0)):
        process = ampsure.Process("mine", (0,) * len(masses), masses)
        assert not find_invalid(phase_space_points(process, 500), masses, beams_along_z=True)[0].any()
