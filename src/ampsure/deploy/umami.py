"""`export_umami`: a surrogate as C++ source and a shared library, for MadGraph 7 (UMAMI) and for anyone's C or C++.

The program is in `cpp/` and is the same for all surrogates; what differs is written here: `model.h` (shapes and
numbers, all of them constants to the compiler) and `weights.bin`, which becomes part of the library.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from importlib.resources import files
from math import inf, isnan
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

import numpy as np
import torch

from ampsure._version import __version__
from ampsure.errors import AmpsureError, InvalidEventsError
from ampsure.io import temporary_beside
from ampsure.kinematics import Array
from ampsure.likelihoods import Evidential, EvidentialMixture, Likelihood, Mixture
from ampsure.likelihoods.base import LARGEST_NOISE
from ampsure.likelihoods.mse import MSE
from ampsure.networks import StackedMLP
from ampsure.posteriors.laplace import STEP
from ampsure.prediction import Prediction
from ampsure.preprocessing import AsinhTarget, Standardization
from ampsure.surrogate import Surrogate

from .agreement import check
from .amplitudes import to_numpy

__all__ = ["LIBRARY", "Library", "export_umami"]

LIBRARY = "libampsure_surrogate.so"
SOURCES = ("ampsure_surrogate.h", "likelihood.h", "network.h", "surrogate.cpp")
_GENERATED = ("Makefile", "model.h", "weights.bin")

_PANEL, _PADDING = 32, 16  # as in network.h
_INPUTS = {
    "invariants": "invariants",
    "folded": "folded",
    "momenta": "momenta",
    "momenta+invariants": "momenta_and_invariants",
}

_MAKEFILE = """\
# make            for the machine it runs on
# make MARCH=     for any machine of its kind, slower
CXX ?= c++
MARCH ?= -march=native
OPTIMIZE ?= {optimize}

{library}: surrogate.cpp ampsure_surrogate.h likelihood.h network.h model.h weights.bin
\t$(CXX) {flags} $(OPTIMIZE) $(MARCH) -o $@ surrogate.cpp
"""
_FLAGS = "-std=c++17 -fPIC -shared -fvisibility=hidden -fno-math-errno -ffp-contract=fast"


def export_umami(
    surrogate: Surrogate,
    folder: str | os.PathLike[str],
    *,
    portable: bool = False,
    build: bool = True,
    optimize: str = "-O3",
) -> Path:
    """Write C++ source of a surrogate into a folder and compile it; gives the path of the shared library.

    The library has no dependency but the C++ standard library, and reads no file. `ampsure_surrogate.h` says what is
    in it. Its networks have the precision of the surrogate's (see `Surrogate.in_precision`). Once compiled, its answers
    are compared with `predict`. An earlier export in the folder is replaced; whole or not at all.

    Args:
        portable: for any machine of this kind, not only for this one; slower.
        build: compile it, with `CXX` or c++; without, `make` in the folder does so.
        optimize: options of the compiler.
    """
    target = Path(os.path.realpath(folder))
    if target.exists() and not target.is_dir():
        raise AmpsureError(f"{folder} is a file: give the name of a folder to write to.")
    foreign = {path.name for path in target.iterdir()} - {*SOURCES, *_GENERATED, LIBRARY} if target.is_dir() else set()
    if foreign:
        raise AmpsureError(f"{folder} holds other files, such as {min(foreign)!r}: choose an empty or a new folder.")
    weights = _Weights()
    model = _model(surrogate, weights)
    try:
        with temporary_beside(target) as temporary:
            temporary.mkdir(parents=True)
            for name in SOURCES:
                (temporary / name).write_bytes((files("ampsure.deploy") / "cpp" / name).read_bytes())
            (temporary / "model.h").write_text(model, encoding="ascii")
            (temporary / "weights.bin").write_bytes(b"".join(weights.parts))
            makefile = _MAKEFILE.format(library=LIBRARY, flags=_FLAGS, optimize=optimize)
            (temporary / "Makefile").write_text(makefile)
            if build:
                _compile(temporary, [*shlex.split(optimize), *([] if portable else ["-march=native"])])
                check(Library(temporary).predict, surrogate, "library")
            _put(temporary, target)
    except OSError as error:
        reason = f"{error.strerror or error}: free some space or choose another folder"
        raise AmpsureError(f"The library cannot be written to {folder} ({reason}).") from error
    return target / LIBRARY


class Library:
    """A library written by `export_umami`, called from Python. One object a thread: each has one handle.

    Args:
        path: of the library, or of its folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        file = self._path = Path(path) / LIBRARY if Path(path).is_dir() else Path(path)
        try:
            with TemporaryDirectory() as folder:  # the loader knows files by name: a new name finds a file written anew
                link = Path(folder) / token_hex(8)
                link.symlink_to(os.path.realpath(file))
                self._functions = ctypes.CDLL(str(link))
            self._functions.ampsure_create.restype = ctypes.c_void_p
        except (OSError, AttributeError) as error:
            raise AmpsureError(f"{file} is not a library of a surrogate for this machine: {error}.") from error
        self._handle = ctypes.c_void_p(self._functions.ampsure_create())
        if not self._handle:
            raise AmpsureError(f"There is not enough memory for {file}.")
        self.n_legs = int(self._functions.ampsure_legs())

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._functions.ampsure_destroy(self._handle)

    def __reduce__(self) -> tuple[type[Library], tuple[Path]]:
        return Library, (self._path,)  # copies have handles of their own

    def predict(self, momenta: Array) -> Prediction:
        """Amplitudes and uncertainties of momenta (N, n, 4), as arrays of numpy; see `Surrogate.predict`."""
        try:
            given = np.ascontiguousarray(to_numpy(momenta), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidEventsError("The momenta must be an array of real numbers (N, n, 4).") from error
        if given.ndim != 3 or given.shape[1:] != (self.n_legs, 4):
            raise InvalidEventsError(f"The momenta must have shape (N, {self.n_legs}, 4), not {given.shape}.")
        amplitude, sigma_syst, sigma_stat, sigma_tot = (np.empty(len(given)) for _ in range(4))
        in_domain = np.empty(len(given), np.bool_)
        arrays = (given, amplitude, sigma_syst, sigma_stat, sigma_tot, in_domain)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in arrays)
        self._functions.ampsure_predict(self._handle, ctypes.c_size_t(len(given)), *pointers)
        return Prediction(
            amplitude=amplitude,
            sigma_syst=sigma_syst,
            sigma_stat=sigma_stat,
            sigma_tot=sigma_tot,
            in_domain=in_domain,
        )


def _put(temporary: Path, target: Path) -> None:
    """Exchange a folder for another: a library in use stays with those who use it."""
    old = temporary.with_name(temporary.name + "-old")
    try:
        if target.is_dir():
            os.replace(target, old)
        os.replace(temporary, target)
    except OSError:
        if old.is_dir():
            os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _compile(folder: Path, options: list[str]) -> None:
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    command = [*compiler, *_FLAGS.split(), *options, "-o", LIBRARY, "surrogate.cpp"]
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise AmpsureError(
            f"There is no C++ compiler {compiler[0]!r}: install g++ or clang++, or name yours in the variable CXX."
        ) from error
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "error" in line.lower()] or result.stderr.splitlines()
        raise AmpsureError(f"The C++ compiler {compiler[0]!r} failed: {lines[0] if lines else result.returncode}.")


class _Weights:
    """The file of weights, grown network by network."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, network: StackedMLP) -> int:
        """Where the weights of a network begin: member by member, layer by layer, in panels, then the biases."""
        begin = self.size
        layers = [
            (weight.detach().cpu().numpy(), bias.detach().cpu().numpy())
            for weight, bias in zip(network.weights, network.biases, strict=True)
        ]
        for member in range(network.members):
            for weight, bias in layers:
                both = np.concatenate([weight[member], bias[member]])  # (in + 1, out)
                both = np.pad(both, ((0, 0), (0, -both.shape[1] % _PADDING)))
                panels = (both[:-1, k : k + _PANEL].ravel() for k in range(0, both.shape[1], _PANEL))
                data = np.concatenate([*panels, both[-1]]).tobytes()
                self.parts.append(data)
                self.size += len(data)
        return begin


def _model(surrogate: Surrogate, weights: _Weights) -> str:
    """The file model.h."""
    s, process, config = surrogate, surrogate.process, surrogate.config
    if config.features.inputs not in _INPUTS:
        raise AmpsureError(
            f"The features {config.features.inputs!r} are not built in: only {', '.join(_INPUTS)} exist in C++."
        )
    symmetric = process.symmetric
    inputs = "invariants" if config.features.inputs == "folded" and not symmetric else config.features.inputs
    groups = process.identical if symmetric else ()
    exchange = symmetric and process.n_incoming == 2 and process.pdg_ids[0] == process.pdg_ids[1] != 0
    standard = s.standardization
    low, high, holes = standard.bounds()
    jets, photons = s.cuts.legs(process) if s.cuts is not None else ([], [])
    thresholds = s.cuts.pt_photon if s.cuts is not None else ()
    networks = [stage.network for stage in s.earlier] + [s.network]
    likelihoods = [stage.likelihood for stage in s.earlier] + [s.likelihood]
    systematic = {"averaged": "averaged", "held-out": "held_out"}.get(config.posterior.systematic, "inverse_variance")
    calibration = s.calibration
    extra = [n for n in (s.sigma_network, calibration.networks if calibration is not None else None) if n is not None]
    widest = max(_padded(width) for network in (*networks, *extra) for width in network.widths[1:])
    most_members = max(network.members for network in (*networks, *s.neighbours))
    doubt, everywhere = s.doubt
    asinh = isinstance(s.target, AsinhTarget)
    lines = [
        f"// Written by ampsure {__version__}: the numbers of one surrogate.",
        "#pragma once",
        "namespace model {",
        "using namespace ampsure;",
        f"constexpr char process[] = {_text(process.name)}, unit[] = {_text(process.unit)};",
        f"constexpr int legs = {process.n_legs}, incoming = {process.n_incoming};",
        _integers("pdg_ids", process.pdg_ids),
        _reals("mass", process.masses),
        f"constexpr Inputs inputs = Inputs::{_INPUTS[inputs]};",
        f"constexpr int n_groups = {len(groups)};",
        _integers("group_sizes", (len(group) for group in groups)),
        _integers("group_legs", (leg for group in groups for leg in group)),
        f"constexpr bool exchange_incoming = {_bool(exchange)};",
        f"constexpr int raw_features = {len(standard.low)}, features = {len(standard.columns)};",
        *_statistics("", standard),
        _reals("low", low.tolist()),
        _reals("high", high.tolist()),
        f"constexpr int n_holes = {len(holes)};",
        _integers("hole_columns", (column for column, _, _ in holes)),
        _reals("hole_low", (begin for _, begin, _ in holes)),
        _reals("hole_high", (end for _, _, end in holes)),
        f"constexpr int n_noisy = {len(s.noise.ranges)};",
        _integers("noise_columns", (int(column) for column in s.noise.ranges[:, 0].tolist())),
        *(
            _reals(f"noise_{name}", s.noise.ranges[:, k].tolist())
            for k, name in ((1, "low"), (2, "high"), (3, "variance"))
        ),
        f"constexpr bool has_cuts = {_bool(s.cuts is not None)};",
        f"constexpr int n_jets = {len(jets)}, n_photons = {len(photons)};",
        _integers("separated", (*jets, *photons)),
        *(
            f"constexpr double {name} = {_real(getattr(s.cuts, name) if s.cuts is not None else 0.0)};"
            for name in ("pt_jet", "eta_jet", "eta_photon", "delta_r")
        ),
        _reals(
            "pt_photon",
            (thresholds[min(k, len(thresholds) - 1)] if thresholds else 0.0 for k in range(len(photons))),
        ),
        f"using Real = {'double' if s.network.weights[0].dtype == torch.float64 else 'float'};",
        f"constexpr Activation activation = Activation::{s.network.activation};",
        f"constexpr bool residual = {_bool(s.network.residual)};",
        f"constexpr int widest = {widest}, most_members = {most_members};",
        f"constexpr int most_components = {max(getattr(likelihood, 'k', 1) for likelihood in likelihoods)};",
        f"constexpr Systematic systematic = Systematic::{systematic};",
        f"constexpr int n_stages = {len(s.earlier)};",
    ]
    stages = []
    for k, stage in enumerate(s.earlier):
        lines += _network(f"stage_{k}", stage.network, weights)
        lines += _network(f"neighbours_{k}", s.neighbours[k] if s.neighbours else None, weights)
        numbers = f"{_real(stage.scale)}, {_real(stage.limit)}"
        stages.append(f"{{stage_{k}, {_likelihood(stage.likelihood)}, {numbers}, neighbours_{k}}}")
    lines += [
        f"constexpr Stage stages[] = {{{', '.join(stages) or '{}'}}};",
        *_network("network", s.network, weights),
        *_network("neighbours", s.neighbours[-1] if s.neighbours else None, weights),
        f"constexpr double neighbour_step = {_real(STEP)}, doubt = {_real(doubt)};",
        f"constexpr bool doubt_everywhere = {_bool(everywhere)};",
        f"constexpr Likelihood likelihood = {_likelihood(s.likelihood)};",
        f"constexpr double last_scale = {_real(s.scale)}, last_limit = {_real(s.limit)};",
        f"constexpr bool unbiased = {_bool(s.unbiased)};",
        f"constexpr double largest_noise = {_real(LARGEST_NOISE)};",
        f"constexpr bool has_sigma = {_bool(s.sigma_network is not None)};",
        *_network("sigma", s.sigma_network, weights),
        f"constexpr bool calibrated = {_bool(calibration is not None)};",
        *_network("calibration", None if calibration is None else calibration.networks, weights),
    ]
    if calibration is None:
        lines += [
            _integers("calibration_columns", ()),
            *(_reals(f"calibration_{name}", ()) for name in ("mean", "scale")),
            *(_reals(f"calibration_{name}", (0.0, 0.0)) for name in ("low", "high")),
        ]
    else:
        lines += _statistics("calibration_", calibration.standardization)
        for name in ("low", "high"):
            lines.append(_reals(f"calibration_{name}", getattr(calibration.standardization, name)[-2:].tolist()))
    lines += [
        f"constexpr double calibration_shift = {_real(0.0 if calibration is None else calibration.shift)};",
        f"constexpr double calibration_factor = {_real(1.0 if calibration is None else calibration.scale)};",
        f"constexpr Target target = Target::{'asinh' if asinh else 'log'};",
        f"constexpr double target_mean = {_real(s.target.mean)}, target_scale = {_real(s.target.scale)};",
        f"constexpr double target_unit = {_real(s.target.unit if isinstance(s.target, AsinhTarget) else 1.0)};",
        "}  // namespace model",
    ]
    return "\n".join(lines) + "\n"


def _statistics(prefix: str, standard: Standardization) -> list[str]:
    return [
        _integers(f"{prefix}columns", standard.columns.tolist()),
        _reals(f"{prefix}mean", standard.mean.tolist()),
        _reals(f"{prefix}scale", standard.scale.tolist()),
    ]


def _network(name: str, network: StackedMLP | None, weights: _Weights) -> list[str]:
    if network is None:
        return [f"constexpr Network {name} = {{}};"]
    shape = f"{weights.add(network)}, {network.members}, {len(network.widths) - 1}, {name}_widths"
    return [_integers(f"{name}_widths", network.widths), f"constexpr Network {name} = {{{shape}}};"]


def _likelihood(likelihood: Likelihood) -> str:
    components = likelihood.k if isinstance(likelihood, Mixture) else 1
    variance = likelihood.variance if isinstance(likelihood, MSE) else 1.0
    r = likelihood.r if isinstance(likelihood, Evidential | EvidentialMixture) else 1.0
    constrained = not isinstance(likelihood, Evidential) or likelihood.variant == "constrained"
    return f"{{Kind::{likelihood.name}, {components}, {_real(variance)}, {_real(r)}, {_bool(constrained)}}}"


def _padded(width: int) -> int:
    return -(-width // _PADDING) * _PADDING


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _real(value: float) -> str:
    """A literal with all bits of the number."""
    value = float(value)
    if isnan(value):
        raise AmpsureError("The surrogate has a number that is not a number: train it again.")
    return value.hex() if abs(value) < inf else "infinity" if value > 0 else "-infinity"


def _integers(name: str, values: Iterable[int]) -> str:
    return f"constexpr int {name}[] = {{{', '.join(str(int(v)) for v in values) or '0'}}};"  # none may be empty


def _reals(name: str, values: Iterable[float]) -> str:
    return f"constexpr double {name}[] = {{{', '.join(_real(v) for v in values) or '0'}}};"


def _text(text: str) -> str:
    """A string literal: all but letters, digits and blanks as octal numbers, so that no text can end it."""
    kept = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ ")
    data = text.encode("utf-8", "replace")
    return '"' + "".join(chr(byte) if byte in kept else f"\\{byte:03o}" for byte in data) + '"'
