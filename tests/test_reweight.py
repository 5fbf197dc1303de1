"""Named weights in LHE files, and uncertainties of histograms."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

import ampsure
from ampsure import AmpsureError, fit
from ampsure.deploy import histogram, member_amplitudes, reweight, save_histogram, surrogate_weights
from ampsure.evaluation import Observable, observables
from ampsure.io import lhe
from ampsure.networks import StackedMLP

CONFIG = {"network": {"hidden": (32, 32)}, "posterior": {"members": 3}}


@pytest.fixture(scope="module")
def trained(events):
    return fit(events, "repulsive", config=CONFIG, epochs=40, batch_size=128, seed=1)


@pytest.fixture(scope="module")
def others(events):
    """Events of the same sample, some of them outside the domain of what was trained on the others."""
    return ampsure.generate("gg_yyg", 400, seed=9, sampling="rambo")


NAMES = ["surrogate", *(f"surrogate_{k}_{w}" for k in ("syst", "stat") for w in ("up", "down")), "surrogate_in_domain"]


@pytest.mark.parametrize("suffix", [".lhe", ".lhe.gz"])
def test_weights_come_back_to_the_bit(trained, others, tmp_path, suffix):
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    ampsure.save(others, source)
    found = reweight(source, trained, target, members=True)
    weights = lhe.named_weights(target)
    expected = surrogate_weights(trained, others, members=True)
    assert set(NAMES) | {f"surrogate_member_{k}" for k in range(3)} == set(expected)
    for name, column in expected.items():
        np.testing.assert_array_equal(weights[name], column)
    back = ampsure.load(target)
    for name in ("momenta", "amplitude", "weights"):
        np.testing.assert_array_equal(getattr(back, name), getattr(others, name))
    assert back.provenance == others.provenance
    assert found.events == 400
    assert found.outside == int((expected["surrogate_in_domain"] == 0).sum()) > 0
    assert found.weights["surrogate"] == pytest.approx(expected["surrogate"].sum())
    assert found.total == pytest.approx(others.weights.sum())
    content = lhe.import_pylhe().LHEFile.fromfile(str(target))
    assert len(list(content.events)) == 400
    declared = content.header.initrwgt
    groups = {group.name: group for group in declared.entries}
    assert groups["surrogate_systematic"].combine == "envelope"
    assert set(expected) <= set(declared.list_weights_ids())


def test_weights_mean_what_they_say(trained, others):
    p, w = trained.predict(others.momenta), surrogate_weights(trained, others, members=True)
    inside, rate = p.in_domain, others.weights / others.truth
    np.testing.assert_allclose(w["surrogate"][inside], (rate * p.amplitude)[inside])
    small = inside & (p.sigma_tot < 0.1 * p.amplitude)
    up, down = w["surrogate_syst_up"] / w["surrogate"], w["surrogate_syst_down"] / w["surrogate"]
    np.testing.assert_allclose((up - down)[small] / 2, (p.sigma_syst / p.amplitude)[small], rtol=0.02)
    np.testing.assert_allclose(up * down, 1)
    # members: mean and spread are the amplitude and sigma_stat, to second order
    a = np.stack([w[f"surrogate_member_{k}"] for k in range(3)])[:, small] / rate[small]
    np.testing.assert_allclose(a.mean(0), p.amplitude[small], rtol=0.02)
    np.testing.assert_allclose(a.std(0), p.sigma_stat[small], rtol=0.1)
    # outside nothing changes, unless it is asked for
    for name in NAMES[:-1]:
        np.testing.assert_array_equal(w[name][~inside], others.weights[~inside])
    bold = surrogate_weights(trained, others, outside="surrogate")
    np.testing.assert_allclose(bold["surrogate"], rate * p.amplitude)
    np.testing.assert_array_equal(bold["surrogate_in_domain"], inside)


FOREIGN = """<LesHouchesEvents version="3.0">
<!-- not ours -->
HEADER<init>
2212 2212 500 500 0 0 0 0 -4 1
1.0 0.1 1.0 1
</init>
<event>
 5 1 2.5 91.188 0.0078 0.118
 21 -1 0 0 501 502 0 0 PZ1 PZ1 0 0. 9.
 21 -1 0 0 502 503 0 0 -PZ2 PZ2 0 0. 9.
 22 1 1 2 0 0 LEG2 0 0. 9.
 22 1 1 2 0 0 LEG3 0 0. 9.
 21 1 1 2 501 503 LEG4 0 0. 9.
# a comment
EVENT<mgrwt>kept</mgrwt>
</event>
</LesHouchesEvents>
"""


@pytest.mark.parametrize(
    ("header", "event"),
    [
        ("", ""),
        ("<header>\n<MG5>text &amp; more</MG5>\n</header>\n", ""),
        ("<header/>\n", ""),
        (
            "<header>\n<initrwgt>\n<weight id='1'>scale</weight>\n</initrwgt>\n</header>\n",
            "<rwgt>\n<wgt id='1'> 2.0 </wgt>\n</rwgt>\n",
        ),
    ],
)
def test_files_of_others_stay_as_they_are(trained, events, tmp_path, header, event):
    """No line is lost, colours and foreign elements included; the reference is the exact amplitude."""
    p = events.momenta[0]
    text = FOREIGN.replace("HEADER", header).replace("EVENT", event)
    text = text.replace("PZ1", repr(float(p[0, 0]))).replace("PZ2", repr(float(p[1, 0])))
    for k in (2, 3, 4):
        e, px, py, pz = map(float, p[k])
        text = text.replace(f"LEG{k}", f"{px!r} {py!r} {pz!r} {e!r}")
    (tmp_path / "a.lhe").write_text(text)
    reweight(tmp_path / "a.lhe", trained, tmp_path / "b.lhe")
    old, new = text.splitlines(), (tmp_path / "b.lhe").read_text().splitlines()
    rest = iter(new)
    assert all(line in rest for line in old if line != "<header/>")  # all of them, in order
    weights = lhe.named_weights(str(tmp_path / "b.lhe"))
    assert set(NAMES) <= set(weights)
    expected = 2.5 * trained.predict(p[None]).amplitude / events.truth[0]
    np.testing.assert_allclose(weights["surrogate"], expected, rtol=1e-9)
    if event:
        assert weights["1"] == [2.0]
    with pytest.raises(AmpsureError, match="already has a weight 'surrogate'"):
        reweight(tmp_path / "b.lhe", trained, tmp_path / "c.lhe")
    reweight(tmp_path / "b.lhe", trained, tmp_path / "c.lhe", name="again")
    assert {"surrogate", "again"} <= set(lhe.named_weights(tmp_path / "c.lhe"))


def test_refusals_leave_nothing(trained, others, tmp_path, run):
    trained.save(tmp_path / "run")
    ampsure.save(others, tmp_path / "a.lhe")
    text = (tmp_path / "a.lhe").read_text()
    (tmp_path / "cut.lhe").write_text(text[: len(text) // 2])
    with gzip.open(tmp_path / "two.lhe.gz", "wt") as file:
        file.write(text.replace("</event>\n<event>", "</event><event>"))
    before = sorted(tmp_path.iterdir())
    for arguments, message in (
        (("a.lhe", "-o", "b.h5"), "Named weights are for LHE files"),
        (("a.h5", "-o", "b.lhe"), "Named weights are for LHE files"),
        (("none.lhe", "-o", "b.lhe"), "There is no file"),
        (("cut.lhe", "-o", "b.lhe"), "cannot be read"),
        (("a.lhe", "-o", "b.lhe", "--name", "a b"), "letters, digits and underscores"),
        (("a.lhe", "-o", "no/b.lhe"), "There is no folder"),
    ):
        code, _, err = run("reweight", *arguments, "--surrogate", "run")
        assert (code, err.count("Error:")) == (2, 1), err
        assert message in err
    assert sorted(tmp_path.iterdir()) == before
    assert run("reweight", "two.lhe.gz", "--surrogate", "run", "-o", "b.lhe")[0] == 0
    np.testing.assert_array_equal(
        lhe.named_weights(tmp_path / "b.lhe")["surrogate"], surrogate_weights(trained, others)["surrogate"]
    )
    code, out, _ = run("reweight", "a.lhe", "--surrogate", "run", "-o", "b.lhe.gz", "--members")
    assert code == 0
    assert "surrogate_member_2" in out
    assert "outside the domain" in out
    with pytest.raises(AmpsureError, match="cannot be read as an LHE file"):
        lhe.named_weights(str(tmp_path / "cut.lhe"))
    alone = replace(trained, network=StackedMLP(trained.network.widths[0], 2))
    with pytest.raises(AmpsureError, match="no members"):
        surrogate_weights(alone, others, members=True)
    with pytest.raises(AmpsureError, match="'reference' or"):
        surrogate_weights(trained, others, outside="zero")


# --- histograms -------------------------------------------------------------------------------------------------------


def test_histogram_is_the_sum_it_says(trained, others):
    h = histogram(trained, others, "mass", bins=6)
    p, total = trained.predict(others.momenta), others.provenance["generation"]["cross_section"]
    rate = others.weights / others.truth * total / others.weights.sum()
    inside = (others.final_state_mass >= h.edges[2]) & (others.final_state_mass < h.edges[3])
    width = h.edges[3] - h.edges[2]
    r, a, syst = rate[inside], p.amplitude[inside], p.sigma_syst[inside]
    assert h.value[2] == pytest.approx((r * a).sum() / width)
    assert h.monte_carlo[2] == pytest.approx(np.sqrt(((r * a) ** 2).sum()) / width)
    assert h.syst_independent[2] == pytest.approx(np.sqrt(((r * syst) ** 2).sum()) / width)
    assert h.syst_correlated[2] == pytest.approx((r * syst).sum() / width)
    members = member_amplitudes(trained, others.momenta[inside])
    assert h.stat[2] == pytest.approx((r * members).sum(1).std() / width)
    assert h.outside[2] == pytest.approx((r * a)[~p.in_domain[inside]].sum() / (r * a).sum())
    assert (h.syst_independent <= h.syst_correlated).all()
    assert h.units == "pb/GeV"


def test_statistical_band_lies_below_its_bound(trained, events):
    """Members that agree on a direction are never worse than all errors together."""
    sure = trained.predict(events.momenta).sigma_tot < 0.2 * events.truth  # where a spread in logs is one in amplitudes
    chosen = events[sure]
    h = histogram(trained, chosen, bins=5)
    p, total = trained.predict(chosen.momenta), chosen.provenance["generation"]["cross_section"]
    weights = chosen.weights / chosen.truth * total / chosen.weights.sum() * p.sigma_stat
    together = np.histogram(chosen.final_state_mass, h.edges, weights=weights)[0] / np.diff(h.edges)
    assert (h.stat <= together * 1.05).all()
    assert (h.stat > 0).all()


def test_bands_cover_what_varies(events):
    """A surrogate that draws each event's amplitude by its sigma_syst: the histogram varies by the independent band."""
    surrogate = fit(events, "heteroscedastic", config=CONFIG | {"posterior": {}}, epochs=10, seed=1)
    h = histogram(surrogate, events, bins=4)
    p, rng = surrogate.predict(events.momenta), np.random.default_rng(1)
    total = events.provenance["generation"]["cross_section"]
    rate = events.weights / events.truth * total / events.weights.sum()
    draws = np.stack([
        np.histogram(events.final_state_mass, h.edges, weights=rate * (p.amplitude + p.sigma_syst * z))[0]
        for z in rng.standard_normal((400, len(events)))
    ]) / np.diff(h.edges)  # fmt: skip
    # a standard deviation of 400 draws is good to 1/sqrt(800) = 3.5 %
    np.testing.assert_allclose(draws.std(0), h.syst_independent, rtol=4 * 0.035)
    np.testing.assert_allclose(h.stat, 0, atol=1e-300)  # one network knows none


def test_histogram_files(trained, others, tmp_path, run):
    trained.save(tmp_path / "run")
    ampsure.save(others, tmp_path / "a.h5")
    code, out, _ = run("histogram", "run", "--data", "a.h5", "--observable", "pt5", "--bins", 7, "-o", "out/pt")
    assert code == 0
    assert "systematic, correlated" in out
    h = histogram(trained, others, "pt5", bins=7)
    table = json.loads((tmp_path / "out/pt.yaml").read_text())
    (dependent,), (independent,) = table["dependent_variables"], table["independent_variables"]
    assert [v["value"] for v in dependent["values"]] == h.value.tolist()
    assert [v["low"] for v in independent["values"]] == h.edges[:-1].tolist()
    errors = {e["label"]: e["symerror"] for e in dependent["values"][3]["errors"]}
    assert errors["surrogate, statistical"] == h.stat[3]
    with (tmp_path / "out/pt.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["systematic_correlated"]) for row in rows] == h.syst_correlated.tolist()
    for suffix in ("pdf", "png"):
        assert (tmp_path / f"out/pt.{suffix}").stat().st_size > 1000
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load((tmp_path / "out/pt.yaml").read_text()) == table
    assert run("histogram", "run", "--data", "a.h5", "--observable", "spin", "-o", "x")[0] == 2


def test_observables_of_ones_own(trained, others, tmp_path):
    values = observables(others)[1].values / 1000
    own = Observable("x", "x", "", values)
    plain = replace(others, provenance={})
    h = histogram(trained, plain, own, edges=np.array([0.0, 0.2, 0.5, 1.0]))
    assert h.units == "1"
    assert (h.value * np.diff(h.edges)).sum() == pytest.approx(1, abs=0.05)
    assert len(save_histogram(h, tmp_path / "x")) == 4
    with pytest.raises(AmpsureError, match="increase"):
        histogram(trained, plain, own, edges=np.array([1.0, 0.0]))
    for edges in ([0.0, np.inf], [0.0, np.nan, 1.0]):
        with pytest.raises(AmpsureError, match="finite numbers"):
            histogram(trained, plain, own, edges=np.array(edges))
    with pytest.raises(AmpsureError, match="400 events need so many values"):
        histogram(trained, plain, replace(own, values=values[:3]))
    with pytest.raises(AmpsureError, match="no events"):
        histogram(trained, plain[:0])
    with pytest.raises(AmpsureError, match="between these events: none"):
        histogram(trained, plain[:1])
    with pytest.raises(AmpsureError, match="add up to zero"):
        histogram(trained, replace(plain, weights=np.tile([1.0, -1.0], 200)))
    with pytest.raises(AmpsureError, match="amplitude of zero"):
        histogram(trained, replace(plain, truth=np.zeros(400)), own)
