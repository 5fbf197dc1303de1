"""Gated amplitudes: what is gated and why, and exact amplitudes of other programs."""

from __future__ import annotations

import os
import pickle
import select
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import ampsure
from ampsure import AmpsureError, fit, get_process
from ampsure.deploy import ExternalProgram, GatedAmplitude, SharedLibrary, UmamiLibrary
from ampsure.kinematics import minkowski
from ampsure.prediction import Prediction

exact = get_process("gg_yyg").amplitude


@dataclass
class Told:
    """Predicts what it is told to."""

    prediction: Prediction

    def predict(self, momenta):
        return self.prediction


@pytest.fixture(scope="module")
def trained(events):
    return fit(events, "repulsive", config={"network": {"hidden": (32, 32)}, "posterior": {"members": 2}}, epochs=15)


def test_each_point_goes_where_it_belongs(events):
    amplitude = np.array([1.0, 2.0, 3.0, np.inf, -4.0])
    sigma = np.array([0.05, 0.3, 0.1, 1.0, 0.2])
    inside = np.array([True, True, False, True, True])
    asked = []

    def counted(momenta):
        asked.append(momenta)
        return exact(momenta)

    points = events.momenta[:5]
    gate = GatedAmplitude(Told(Prediction(amplitude, sigma, sigma, sigma, inside)), counted, 0.1, keep=2)
    found = gate(points)
    np.testing.assert_array_equal(found[[0, 4]], [1.0, -4.0])
    np.testing.assert_array_equal(found[[1, 2, 3]], exact(points[[1, 2, 3]]))
    (batch,) = asked  # one call
    np.testing.assert_array_equal(batch, points[[1, 2, 3]])
    c = gate.counts
    assert (c.points, c.uncertain, c.outside, c.gated, c.gated_share) == (5, 1, 2, 3, 0.6)
    assert c.surrogate_seconds > 0
    assert c.exact_seconds > 0
    assert len(gate.log) == 2  # no more than asked for
    np.testing.assert_array_equal(gate.log.surrogate, [2.0, 3.0])
    np.testing.assert_array_equal(gate.log.outside, [False, True])


@pytest.mark.parametrize("tolerance", [0.0, 0.02, 1e9])
def test_tolerance_bounds_what_the_surrogate_answers(trained, events, tolerance):
    gate = GatedAmplitude(trained, exact, tolerance)
    found, p = gate(events.momenta), trained.predict(events.momenta)
    sure = p.in_domain & (p.sigma_tot <= tolerance * p.amplitude)
    np.testing.assert_array_equal(found[sure], p.amplitude[sure])
    np.testing.assert_allclose(found[~sure], events.truth[~sure], rtol=1e-9)
    assert gate.counts.gated == (~sure).sum()
    tensor = gate(torch.from_numpy(events.momenta))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), found)
    assert gate.counts.points == 2 * len(events)
    assert len(gate(events.momenta[:0])) == 0


def test_single_points_take_no_longer_the_more_there_were(events):
    """Only points that are gated are kept, and no call looks at all that were before."""
    one, nothing = np.ones(1), np.zeros(1)
    gate = GatedAmplitude(Told(Prediction(one, nothing, nothing, nothing, one > 0)), exact, 0.1, keep=3)
    for _ in range(5):
        gate(events.momenta[:1])
    assert gate._parts == []
    with pytest.raises(AmpsureError, match="kept no points"):
        gate.log  # noqa: B018
    gate.surrogate.prediction = Prediction(one, one, one, one, one > 0)
    for _ in range(5):
        gate(events.momenta[:1])
    assert len(gate.log) == len(gate._parts) == 3
    assert gate.counts.gated == 5


def test_exact_amplitudes_may_be_tensors_that_carry_gradients(trained, events):
    def differentiable(momenta):
        return torch.from_numpy(momenta).requires_grad_()[:, 0, 0] * 2

    points = events.momenta[:3]
    np.testing.assert_array_equal(GatedAmplitude(trained, differentiable, 0.0)(points), 2 * points[:, 0, 0])


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_gated_points_are_events_to_train_on(trained, events, tmp_path, suffix):
    gate = GatedAmplitude(trained, exact, 0.0, keep=300)
    gate(events.momenta[:200])
    gate(events.momenta[200:400])
    gate.log.save(tmp_path / f"log{suffix}", events.process)
    back = ampsure.load(tmp_path / f"log{suffix}")
    assert len(back) == 300
    assert back.process == events.process
    np.testing.assert_array_equal(back.momenta, events.momenta[:300])
    np.testing.assert_allclose(back.truth, events.truth[:300], rtol=1e-9)
    stored = h5py.File(tmp_path / "log.h5") if suffix == ".h5" else np.load(tmp_path / "log.npz")
    with stored:
        np.testing.assert_array_equal(stored["surrogate"], trained.predict(events.momenta[:300]).amplitude)
        assert stored["sigma_tot"].shape == stored["outside"].shape == (300,)
    assert fit(back, "mse", config={"network": {"hidden": (8,)}}, epochs=1) is not None


def test_a_gate_is_an_amplitude_to_generate_with(trained):
    """As good as the exact one where all is gated; threads share the counts."""
    plain = ampsure.generate("gg_yyg", 200, seed=5, sampling="rambo", workers=2)
    gate = GatedAmplitude(trained, exact, 0.0)
    events = ampsure.generate(
        replace(plain.process, name="gated", exact=gate), 200, seed=5, sampling="rambo", workers=2
    )
    np.testing.assert_array_equal(events.momenta, plain.momenta)
    np.testing.assert_allclose(events.amplitude, plain.amplitude, rtol=1e-9)
    assert gate.counts.gated == gate.counts.points >= 200


def test_refusals(trained, events, tmp_path):
    with pytest.raises(AmpsureError, match="relative error"):
        GatedAmplitude(trained, exact, -1.0)
    with pytest.raises(AmpsureError, match="kept no points"):
        GatedAmplitude(trained, exact, 0.1).log  # noqa: B018
    with pytest.raises(AmpsureError, match="must give 5 numbers"):
        GatedAmplitude(trained, lambda p: 1.0, 0.0)(events.momenta[:5])
    for values in (1j * np.ones(5), np.array(["one"] * 5), [True] * 5):
        with pytest.raises(AmpsureError, match="must give real numbers"):
            GatedAmplitude(trained, lambda p, values=values: values, 0.0)(events.momenta[:5])
    with pytest.raises(AmpsureError, match="must be finite, but it is not for 5 of 5"):
        GatedAmplitude(trained, lambda p: np.full(len(p), np.nan), 0.0)(events.momenta[:5])
    gate = GatedAmplitude(trained, exact, 0.0, keep=5)
    gate(events.momenta[:5])
    with pytest.raises(AmpsureError, match=r"\.h5 or \.npz"):
        gate.log.save(tmp_path / "log.txt")
    assert not list(tmp_path.iterdir())


# --- other programs ---------------------------------------------------------------------------------------------------

SERVER = """
import sys
for line in sys.stdin:
    n, legs = map(int, line.split())
    rows = [list(map(float, sys.stdin.readline().split())) for _ in range(n)]
    BEFORE
    sys.stdout.write("\\n".join(map(str, [ANSWER])) + "\\n")  # at once, buffered or not
    sys.stdout.flush()
    AFTER
"""
BINARY = """
import struct, sys
while head := sys.stdin.buffer.read(16):
    n, legs = struct.unpack("<qq", head)
    rows = [struct.unpack(f"<{4 * legs}d", sys.stdin.buffer.read(32 * legs)) for _ in range(n)]
    sys.stdout.buffer.write(struct.pack(f"<q{n}d", n, *(2 * row[0] * row[4] - 2 * row[3] * row[7] for row in rows)))
    sys.stdout.buffer.flush()
"""


def server(answer="n, *(repr(2 * r[0] * r[4] - 2 * r[3] * r[7]) for r in rows)", before="pass", after="pass"):
    code = SERVER.replace("ANSWER", answer).replace("BEFORE", before).replace("AFTER", after)
    return [sys.executable, "-c", code]


def s12(momenta):
    return 2 * minkowski(momenta[:, 0], momenta[:, 1])


@pytest.mark.parametrize("binary", [False, True])
def test_program_answers_to_the_bit(events, binary):
    command = [sys.executable, "-c", BINARY] if binary else server()
    with ExternalProgram(command, binary=binary, batch=700, timeout=60) as program:
        found = program(events.momenta)  # more than a pipe holds
        np.testing.assert_allclose(found, s12(events.momenta), rtol=1e-14)
        again = program(events.momenta[:3])
        np.testing.assert_array_equal(again, found[:3])
        assert len(program(events.momenta[:0])) == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (server("n - 1, *[1.0] * (n - 1)"), "announced 4 numbers for 5 points"),
        (server("n, *[1.0] * (n + 2)"), "more numbers than it was asked for"),
        (server("n, *[1.0] * (n - 2)"), "did not answer within 1 s"),
        (server("n, 'nan', *[1.0] * (n - 1)"), "not finite for 1 of 5 points"),
        (server("'hello', *[1.0] * n"), "did not answer as it should"),
        (server("n, *['x'] * n"), "did not answer as it should"),
        (server("n", before="sys.exit('no licence')"), "ended with code 1 .*no licence"),
        (server("n, 1.0", after="sys.exit(3)"), "ended with code 3"),
        (server(before="import time; time.sleep(60)"), "did not answer within 1 s"),
        (["/no/such/program"], "cannot be started: No such file"),
        ([sys.executable, "-c", "pass"], "ended with code 0"),
    ],
)
def test_program_that_fails_is_met_with_a_sentence(events, command, message):
    timeout = 1 if "within 1 s" in message else 60
    program = ExternalProgram(command, timeout=timeout)
    with pytest.raises(AmpsureError, match=message) as error:
        program(events.momenta[:5])
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)
    assert program._process is None  # nothing is left running


def test_what_comes_late_is_not_taken_for_the_next_answer(events):
    late = "time.sleep(0.2); print(5, *[3.0] * 5, sep='\\n', flush=True)"
    program = ExternalProgram(server("n, *[1.0] * n", before="import time", after=late), timeout=60)
    np.testing.assert_array_equal(program(events.momenta[:5]), 1.0)
    select.select([program._process.stdout], [], [], 60)
    with pytest.raises(AmpsureError, match="more numbers than it was asked for"):
        program(events.momenta[:5])
    np.testing.assert_array_equal(program(events.momenta[:5]), 1.0)  # a new one
    program.close()


def test_what_a_program_has_started_ends_with_it(events, tmp_path):
    """A script around the program proper: both are gone after the time limit."""
    script = f"import os, subprocess, sys; open({str(tmp_path / 'id')!r}, 'w').write(str(os.getpid()))"
    inner = f"{script}; import time; time.sleep(60)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with pytest.raises(AmpsureError, match="did not answer within 3 s"):
        ExternalProgram([sys.executable, "-c", outer], timeout=3)(events.momenta[:5])
    process = int((tmp_path / "id").read_text())
    for _ in range(100):  # its new parent may take a moment to notice
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    status = Path(f"/proc/{process}/stat")
    assert status.exists()
    assert status.read_text().split(") ")[1][0] == "Z"  # ended, though nobody has asked


def test_threads_take_turns(trained, events, library):
    with ExternalProgram(server(), batch=50, timeout=60) as program, ThreadPoolExecutor(4) as pool:
        for amplitude in (program, UmamiLibrary(library)):
            gate = GatedAmplitude(trained, amplitude, 0.0)
            found = np.concatenate(list(pool.map(gate, np.split(events.momenta, 20))))
            np.testing.assert_allclose(found, s12(events.momenta), rtol=1e-14)
            assert gate.counts.gated == len(events)


def test_program_behind_a_gate_starts_again(trained, events):
    program = ExternalProgram(server(after="sys.exit(0)"), timeout=60)
    gate = GatedAmplitude(trained, program, 0.0)
    np.testing.assert_allclose(gate(events.momenta[:4]), s12(events.momenta[:4]), rtol=1e-14)
    with pytest.raises(AmpsureError, match="ended with code 0"):
        gate(events.momenta[:4])
    np.testing.assert_allclose(gate(events.momenta[:4]), s12(events.momenta[:4]), rtol=1e-14)
    program.close()
    with pytest.raises(AmpsureError, match="at least one point"):
        ExternalProgram("true", batch=0)
    with pytest.raises(AmpsureError, match="no program"):
        ExternalProgram("")


C = """
#include <stddef.h>
#include <stdint.h>
#include <string.h>
void amplitude(const double* p, int64_t n, double* out) {
    for (int64_t i = 0; i < n; i++, p += 20) out[i] = 2 * (p[0] * p[4] - p[3] * p[7]);
}
void forgetful(const double* p, int64_t n, double* out) { if (n > 1) out[0] = 1; }
int umami_get_meta(int key, void* result) { if (key != 1) return 5; *(int*)result = 5; return 0; }
int umami_initialize(void** handle, const char* card) { *handle = (void*)1; return strcmp(card, "bad") == 0; }
int umami_free(void* handle) { return 0; }
int umami_matrix_element(void* handle, size_t count, size_t stride, size_t offset, size_t n_in, const int* in_keys,
                         const void* const* in, size_t n_out, const int* out_keys, void* const* out) {
    if (n_in != 1 || in_keys[0] != 0 || n_out != 1 || out_keys[0] != 0) return 3;
    const double* p = in[0];
    for (size_t i = offset; i < offset + count; i++)  // component k of particle j: stride * (j + 5 k)
        ((double*)out[0])[i] = 2 * (p[i] * p[i + stride] - p[i + stride * 15] * p[i + stride * 16]);
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("library")
    (folder / "a.c").write_text(C)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "a.so", folder / "a.c"], check=True)
    return folder / "a.so"


def test_shared_libraries(library, trained, events, tmp_path):
    for amplitude in (SharedLibrary(library), UmamiLibrary(library)):
        np.testing.assert_allclose(amplitude(events.momenta), s12(events.momenta), rtol=1e-14)
        gate = GatedAmplitude(trained, amplitude, 0.0)
        np.testing.assert_allclose(gate(events.momenta[:7]), s12(events.momenta[:7]), rtol=1e-14)
    np.testing.assert_array_equal(UmamiLibrary(library)(torch.from_numpy(events.momenta[:7])), s12(events.momenta[:7]))
    first = UmamiLibrary(library)
    copies = copy(first), pickle.loads(pickle.dumps(first))
    del first  # which frees its handle, and only that
    for again in copies:
        np.testing.assert_array_equal(again(events.momenta[:7]), s12(events.momenta[:7]))
    with pytest.raises(AmpsureError, match="not for 6 of 7"):
        GatedAmplitude(trained, SharedLibrary(library, "forgetful"), 0.0)(events.momenta[:7])
    with pytest.raises(AmpsureError, match="no function 'other'"):
        SharedLibrary(library, "other")
    with pytest.raises(AmpsureError, match="no shared library"):
        SharedLibrary(tmp_path / "b.so")
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(AmpsureError, match="not a shared library"):
        SharedLibrary(tmp_path / "text.so")
    with pytest.raises(AmpsureError, match="status 1"):
        UmamiLibrary(library, "bad")
    with pytest.raises(AmpsureError, match=r"takes momenta \(N, 5, 4\)"):
        UmamiLibrary(library)(np.zeros((2, 4, 4)))
