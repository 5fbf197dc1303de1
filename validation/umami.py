"""A surrogate as a matrix element of madspace: cross section and events against the exact amplitude.

madspace 0.2.1 loads the library, integrates it with VEGAS, unweights events and writes them as an LHE file. Both
photons have one threshold here: its Chili mapping takes a cut on the leading photon for one on all photons.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import hypot
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ampsure
from ampsure.deploy import export_umami
from ampsure.generation.densities import grv94lo_gluon
from ampsure.generation.settings import PRESETS

BENCHMARK = PRESETS["benchmark"]
PHOTON = 30.0
"""Threshold of both photons in GeV."""
EXACT = (1.1538e-3, 0.0005e-3)
"""Cross section in pb with the exact amplitude, and its error, from three runs of `ampsure.generate`:
20,000 unweighted events of seed 5 and 200,000 weighted ones each of seeds 11 and 12 (chi^2 = 6.5 of 2).
"""


@dataclass(frozen=True)
class Integration:
    """What madspace makes of a library.

    Args:
        cross_section, error: in pb, from its event generator.
        lhe: file of its unweighted events.
        ratio, ratio_error: cross section over that of the exact amplitude, in the same points.
    """

    cross_section: float
    error: float
    lhe: Path
    ratio: float
    ratio_error: float


def integrate(library: Path, folder: Path, events: int, *, pt_photon: float = PHOTON, seed: int = 1) -> Integration:
    """Integrate g g > a a g with the matrix element of a library, at the energy and cuts of the benchmark."""
    import madspace as ms

    process = ampsure.get_process("gg_yyg")
    context = ms.Context(1)
    density, coupling = _grids(folder)
    density.initialize_globals(context)
    coupling.initialize_globals(context)
    api = context.load_matrix_element(str(library), "")
    element = ms.MatrixElement(api, ms.Integrand.matrix_element_inputs, ms.Integrand.matrix_element_outputs, True)
    cross_section = ms.DifferentialCrossSection(
        element, BENCHMARK.energy, None, ms.CachedScale(), [[21, 21]], ms.CachedPdf(), ms.CachedPdf()
    )
    cuts = _cuts(process, pt_photon)
    mapping = ms.PhaseSpaceMapping(list(process.masses), BENCHMARK.energy, mode=ms.PhaseSpaceMapping.chili, cuts=cuts)
    vegas = ms.VegasMapping(mapping.random_dim(), 64, "vegas")
    vegas.initialize_globals(context)
    integrand = ms.Integrand(
        mapping,
        [cross_section],
        vegas,
        pid_options=[[21, 21]],
        pdf_grid=density,
        running_coupling=ms.RunningCoupling(coupling),
        energy_scale=ms.EnergyScale(process.n_legs, BENCHMARK.factorization_scale),
        channel_indices=[0],
        flavor_remap=[0],
        flavor_factors=[0.5],  # identical photons
        flavor_mirror=[False],
    )
    config = ms.GeneratorConfig()
    config.target_count = events
    files = str(folder / "events.npy"), str(folder / "weights.npy")
    channel = ms.ChannelEventGenerator([context], integrand, *files, config, 0, process.name, None)
    generator = ms.EventGenerator([context], [channel], seed, None, config)
    generator.survey()
    generator.generate()
    status = generator.status()
    lhe = folder / "events.lhe"
    generator.combine_to_lhe(str(lhe), _completer(process), _meta(status))

    # after the survey, so that the points are those of the adapted grid
    runtime, points = ms.FunctionRuntime(integrand.function(), context), 20_000
    weights, momenta, *_ = (output.numpy() for output in runtime.call([np.array([points])]))
    inside = weights > 0
    alone = ms.MatrixElement(api, [ms.MatrixElement.momenta_in], [ms.MatrixElement.matrix_element_out])
    found = ms.FunctionRuntime(alone.function(), context).call([momenta[inside]])[0].numpy()
    exact = weights[inside] * process.amplitude(momenta[inside]) / found
    ratio = weights.sum() / exact.sum()
    difference = weights[inside] - ratio * exact
    return Integration(status.mean, status.error, lhe, ratio, np.sqrt(np.square(difference).sum()) / exact.sum())


def _grids(folder: Path) -> tuple[Any, Any]:
    """The benchmark's density as an LHAPDF grid, and a fixed coupling, which surrogates do not look at."""
    import madspace as ms

    x = np.concatenate([np.geomspace(1e-4, 0.1, 60), np.linspace(0.1, 0.985, 60)[1:], [0.999]])
    q = BENCHMARK.factorization_scale * np.geomspace(0.9, 1.1, 6)
    table = np.concatenate([np.stack([grv94lo_gluon(x, scale) for scale in q], 1), np.zeros((1, len(q)))])  # at x = 1
    rows = [" ".join(f"{v:.10e}" for v in knots) for knots in ([*x, 1.0], q)]
    lines = ["PdfType: central", "Format: lhagrid1", "---", *rows, "21", *(f"{v:.10e}" for v in table.ravel()), "---"]
    (folder / "gluon_0000.dat").write_text("\n".join(lines) + "\n")
    scales = np.geomspace(10, 1000, 10)
    (folder / "gluon.info").write_text(
        f"AlphaS_Qs: [{', '.join(f'{v:.6e}' for v in scales)}]\nAlphaS_Vals: [{', '.join(['0.118'] * len(scales))}]\n"
    )
    return ms.PdfGrid(str(folder / "gluon_0000.dat")), ms.AlphaSGrid(str(folder / "gluon.info"))


def _cuts(process: ampsure.Process, pt_photon: float) -> Any:
    import madspace as ms

    c, jet, photon, of = BENCHMARK.cuts, [21], [22], ms.Observable
    bounds = [
        (of.obs_pt, [jet], {"min": c.pt_jet}),
        (of.obs_eta_abs, [jet], {"max": c.eta_jet}),
        (of.obs_pt, [photon], {"min": pt_photon}),
        (of.obs_eta_abs, [photon], {"max": c.eta_photon}),
        (of.obs_delta_r, [photon, photon], {"min": c.delta_r}),
        (of.obs_delta_r, [photon, jet], {"min": c.delta_r}),
    ]
    ids = list(process.pdg_ids)
    return ms.Cuts([ms.CutItem(ms.Observable(ids, what, of_legs), **bound) for what, of_legs, bound in bounds])


def _completer(process: ampsure.Process) -> Any:
    """What an LHE file needs besides momenta: particles and one of the two ways the colour can flow."""
    import madspace as ms

    vertices = [["i0", "o0", "p0"], ["p0", "o1", "p1"], ["p1", "o2", "i1"]]
    lines = [[ms.LineRef(name) for name in vertex] for vertex in vertices]
    diagram = ms.Diagram([0.0] * 2, [0.0] * 3, [ms.Propagator(), ms.Propagator()], lines)
    arguments = ms.SubprocArgs(
        process_id=1,
        topologies=[ms.Topology(diagram)],
        permutations=[[[0, 1, 2]]],
        diagram_indices=[[0]],
        diagram_color_indices=[[[0]]],
        color_flows=[[(1, 2), (2, 3), (0, 0), (0, 0), (1, 3)]],
        pdg_color_types={21: 8, 22: 1},
        helicities=[[0.0] * process.n_legs],
        pdg_ids=[[list(process.pdg_ids)]],
    )
    return ms.LHECompleter([arguments], 15.0)


def _meta(status: Any) -> Any:
    import madspace as ms

    beams = {"beam1_pdg_id": 2212, "beam2_pdg_id": 2212}
    beams |= {"beam1_energy": BENCHMARK.energy / 2, "beam2_energy": BENCHMARK.energy / 2}
    found = ms.LHEProcess(status.mean, status.error, status.mean, 1)
    return ms.LHEMeta(**beams, weight_mode=3, processes=[found])


def main(n: int = 20_000) -> int:
    events = ampsure.generate("gg_yyg", n, seed=5, cuts={"pt_photon": (PHOTON,)})
    exact, exact_error = EXACT
    options: dict[str, Any] = {"network": {"hidden": (64, 64, 64)}, "training": {"epochs": 25, "batch_size": 512}}
    surrogate = ampsure.fit(events, "repulsive", config=options, seed=1)
    with TemporaryDirectory() as name:
        folder = Path(name)
        library = export_umami(surrogate, folder / "library")
        runs = [integrate(library, folder, n, seed=seed) for seed in range(1, 13)]
        found = runs[-1]
        written = ampsure.load(found.lhe, process="gg_yyg")
        passed = BENCHMARK.cuts.model_copy(update={"pt_photon": (PHOTON,)}).passed(written.momenta, written.process)
    mean = sum(run.cross_section for run in runs) / len(runs)
    error = hypot(*(run.error for run in runs)) / len(runs)
    pull = (mean - exact) / hypot(error, exact_error)
    good = {
        "pull": abs(pull) < 3,
        "ratio": abs(found.ratio - 1) < 3 * found.ratio_error + 2e-3,
        "events": len(written) == n and bool(passed.all()),
    }
    table = Table("g g > a a g at 1 TeV", "surrogate in madspace", "exact amplitude", "", "")
    table.add_row(
        "cross section / pb",
        f"{mean:.5g} ± {error:.2g} ({len(runs)} seeds)",
        f"{exact:.5g} ± {exact_error:.2g} (ampsure)",
        f"pull {pull:+.2f}",
        "ok" if good["pull"] else "FAIL",
    )
    ratio = f"{found.ratio:.5f} ± {found.ratio_error:.2g}"
    table.add_row("ratio in the same points", ratio, "1", "", "ok" if good["ratio"] else "FAIL")
    inside = f"{len(written):,} written, {passed.sum():,} inside the cuts"
    table.add_row("LHE events", inside, f"{n:,}", "", "ok" if good["events"] else "FAIL")
    Console(width=140).print(table)
    return int(not all(good.values()))


if __name__ == "__main__":
    sys.exit(main())
