"""Damaged and hostile files for every reader: one sentence, whatever is in them.

Two sources of cases: real files (those of tests/fixtures) with bits, lengths, keys, lines, headers and shapes changed,
and files made of random parts by hypothesis. A case runs in a process with little memory and little time; a crash of
the process, a hang, a blow-up, a traceback and code that runs are failures. The same seeds give the same cases.

`python -m validation.fuzz` runs 100,000 cases and prints a table.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import pickle
import re
import resource
import signal
import struct
import sys
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import hypothesis.extra.numpy as hnp
import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

import ampsure
from ampsure.cli.surrogates import _momenta, config_of
from ampsure.config import TrainingConfig
from ampsure.deploy import umami
from ampsure.errors import AmpsureError
from ampsure.likelihoods import get_likelihood
from ampsure.networks import StackedMLP
from ampsure.posteriors import Point
from ampsure.studies import get_study, load_record
from ampsure.studies.summary import markdown_report
from ampsure.training import Engine, Training, TrainingData

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
ROOM = 2 * 2**30
"""Bytes a case may allocate."""
SECONDS = 10.0
"""Of processor time a case may take."""

Mutation = Callable[[bytes, Random], bytes]


@dataclass(frozen=True)
class Reader:
    """A kind of file, and what reads it.

    Args:
        name: of the file, behind what tells it from others of that name.
        seeds: real ones.
        mutations: how to damage one.
        strategy: makes one from nothing, as bytes.
        read: called with the folder that holds the file.
        share: of all cases.
    """

    name: str
    seeds: list[bytes]
    mutations: list[Mutation]
    strategy: st.SearchStrategy[bytes]
    read: Callable[[Path], object]
    share: float = 1.0


@dataclass
class Report:
    """How many cases of each reader ended how, and the failures in words."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


# bytes, text and JSON, damaged

_NUMBERS = (0, 1, 2, 7, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
_WORDS = (
    "nan", "inf", "-1", "0", "1e999", "-0.0", "9" * 400, "9" * 5000, "1e-320", "2147483648", "", "x", "../../x", "\0",
    "é", "&a;", "<!--", "]]>", '"',
)  # fmt: skip
_DEEP = "@deep@"
_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 2**31, 2**63, 10**30, -1e308, 1e308, 1e-320, float("nan"), float("inf"), "", "x",
    "../../../x", "x" * 10_000, "\ud800", [], {}, [[]], {"x": 1}, [1] * 1000, list(range(5)), _DEEP,
)  # fmt: skip


def damage(data: bytes, rng: Random) -> bytes:
    """Bits flipped, numbers overwritten, parts cut off, taken out, repeated, moved or made up; up to four at once."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(content) or 1)
        part = slice(at, at + rng.choice((1, 2, 8, 100, 1000)))
        match rng.randrange(8):
            case 0 | 1 if content:
                content[at] ^= 1 << rng.randrange(8)
            case 2 | 3:
                form = rng.choice("BHIQ")
                number = rng.choice(_NUMBERS) % 2 ** (8 * struct.calcsize(form))
                content[at : at + struct.calcsize(form)] = struct.pack(rng.choice("<>") + form, number)
            case 4:
                del content[at:]
            case 5:
                del content[part]
            case 6:
                content[at:at] = content[part] * rng.choice((1, 2, 50))
            case _:
                content[part] = rng.randbytes(rng.choice((0, 1, 8, 64)))
    return bytes(content)


def damage_text(data: bytes, rng: Random) -> bytes:
    """Numbers and words replaced, lines taken out, repeated, exchanged or nested."""
    text = data.decode("utf-8", "replace")
    for _ in range(rng.choice((1, 1, 2, 5))):
        match rng.randrange(5):
            case 0 | 1:
                found = list(re.finditer(r"[-+.\w]+" if rng.random() < 0.5 else r"[-+]?\d[\w.+-]*", text))
                if found:
                    word = rng.choice(found)
                    text = text[: word.start()] + rng.choice(_WORDS) + text[word.end() :]
            case 2:
                lines = text.splitlines(keepends=True) or [""]
                i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
                lines[i : i + rng.choice((0, 1, 3))] = lines[j : j + rng.choice((0, 1, 5))] * rng.choice((1, 20))
                text = "".join(lines)
            case 3:
                at = rng.randrange(len(text) + 1)
                text = text[:at] + rng.choice(("[", "{", "<a>", "(")) * rng.choice((1, 1000, 20_000)) + text[at:]
            case _:
                return damage(text.encode(), rng)
    return text.encode()


def damage_json(data: bytes, rng: Random) -> bytes:
    """A value, anywhere in a document, replaced by another one, taken out, renamed or buried deeply."""
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 2))):
        places = list(_places(document))
        if not places:
            break
        parent, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[rng.choice(("x", "", key + "_", "__class__"))] = parent.pop(key)
            case 2:
                other, name = rng.choice(places)
                parent[key] = other[name] if other is not parent and not isinstance(other[name], dict | list) else None
            case 3 if isinstance(parent[key], int | float):
                parent[key] = rng.choice((-parent[key], parent[key] * 1000, parent[key] + 1, str(parent[key])))
            case _:
                parent[key] = deepcopy(rng.choice(_VALUES))
    return _dumps(document)


def _dumps(document: Any) -> bytes:
    return json.dumps(document).replace(f'"{_DEEP}"', "[" * 100_000 + "]" * 100_000).encode()


def _places(value: Any) -> Any:
    """All (container, key) of a document."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


# numpy's files


class _Payload:
    """What a pickle could do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("code-was-run",)


def _npy(rng: Random, array: Any) -> bytes:
    """An array as a file whose header may lie."""
    shape, descr = array.shape, np.lib.format.dtype_to_descr(array.dtype)
    match rng.randrange(5):
        case 0:
            shape = tuple(rng.choice((0, 1, 2**20, 2**31, 2**40, 2**62, -1, 5)) for _ in range(rng.randrange(5)))
        case 1:
            descr = rng.choice(("|O", "<f4", ">i8", "|V8", "<U1000000", "<c16", "|b1", "<M8[s]", [("a", "<f8")], "x"))
        case 2:
            shape = (array.size, *rng.choice(((), (1,), (2**33,), (0,))))
    header = repr({"descr": descr, "fortran_order": rng.random() < 0.3, "shape": shape})
    if rng.random() < 0.1:
        header = rng.choice(("", "{", "(" * 5000, "__import__('os').mkdir('code-was-run')", header * 50))
    version = rng.choice(((1, 0), (1, 0), (2, 0), (3, 0), (9, 9)))
    length = struct.pack("<H" if version == (1, 0) else "<I", len(header) + 1)
    body = array.tobytes() if rng.random() < 0.8 else pickle.dumps(_Payload())
    return np.lib.format.magic(*version) + length + header.encode() + b"\n" + body if version < (3, 1) else body


def damage_npy(data: bytes, rng: Random) -> bytes:
    return _npy(rng, np.load(io.BytesIO(data)))


def damage_npz(data: bytes, rng: Random) -> bytes:
    """One array with a header that lies, is pickled, packed, there twice, or a bomb."""
    target = io.BytesIO()
    with np.load(io.BytesIO(data)) as stored, zipfile.ZipFile(target, "w") as archive:
        chosen = rng.choice(stored.files)
        for name in stored.files:
            plain = io.BytesIO()
            np.save(plain, stored[name])
            content, packing = plain.getvalue(), rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            if name == chosen:
                content = rng.choice((content * 2, b"", _npy(rng, stored[name]), _npy(rng, stored[name])))
                if rng.random() < 0.02:
                    content, packing = _BOMB, zipfile.ZIP_DEFLATED
            archive.writestr(f"{rng.choice(('', '', '', '', '../'))}{name}.npy", content, packing)
    return target.getvalue()


_HEADER = io.BytesIO()
np.lib.format.write_array_header_1_0(_HEADER, {"descr": "<f8", "fortran_order": False, "shape": (2**24,)})
_BOMB = _HEADER.getvalue() + bytes(2**27)


# HDF5


def damage_h5(data: bytes, rng: Random) -> bytes:
    """The same file with another dataset, attribute, link, filter or shape in one place."""
    image = io.BytesIO(data)
    with h5py.File(image, "r+", libver=("v110", "v110")) as file:
        name, key = rng.choice(list(file)), rng.choice(list(file.attrs))
        match rng.randrange(9):
            case 0:
                del file[name]
            case 1:
                file.attrs[key] = rng.choice((1, -1, 99, 1.5, "text", np.bytes_("{}"), [1, 2], h5py.Empty("f8"), b"["))
            case 2:
                file.attrs.create(key, np.bytes_(damage_text(np.bytes_(file.attrs[key]), rng) or b" "))
            case 3:
                del file[name]
                file[name] = rng.choice((h5py.SoftLink("/momenta"), h5py.ExternalLink("other.h5", "/momenta")))
            case 4:
                del file[name]
                file.create_group(name)
            case 5:  # filled with zeros as far as anybody wants to read
                shape = rng.choice(((2**40,), (2**20, 5, 4), (2**50, 5, 4), (12, 5, 4), (12,), (), (0, 5, 4)))
                del file[name]
                chunks = rng.choice((None, tuple(min(n, 2**9) for n in shape) or None)) if 0 not in shape else None
                file.create_dataset(name, shape, rng.choice(("f8", "f4", "i8", "bool", "S8")), chunks=chunks)
            case 6:
                del file[name]
                file.create_dataset(name, (12,), "f8", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])
            case 7:
                layout = h5py.VirtualLayout((12,), "f8")
                layout[:] = h5py.VirtualSource("other.h5", "x", (12,))
                del file[name]
                file.create_virtual_dataset(name, layout)
            case _:
                kind = rng.choice(("f8", "f4", ">f8", "i8", "S8", "c16", h5py.string_dtype(), h5py.vlen_dtype("f8")))
                del file[name]
                file.create_dataset(name, (12,), kind, compression=rng.choice((None, "lzf", "gzip")))
    return image.getvalue()


# surrogates and checkpoints


def damage_tensors(data: bytes, rng: Random) -> bytes:
    """The header of safetensors with another value, length or offset."""
    (length,) = struct.unpack("<Q", data[:8])
    header = damage_json(data[8 : 8 + length], rng)
    declared = rng.choice((len(header),) * 9 + _NUMBERS)
    return struct.pack("<Q", declared) + header + data[8 + length :]


def damage_state(data: bytes, rng: Random) -> bytes:
    """The state of a checkpoint, which is JSON in that header."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    state = damage_json(header["__metadata__"]["state"].encode(), rng)
    header["__metadata__"] |= {"state": state.decode(), "checksum": ""}  # as somebody would who has changed it
    content = json.dumps(header).encode()
    return struct.pack("<Q", len(content)) + content + data[8 + length :]


def _five_legs() -> np.ndarray[Any, Any]:
    """Real momenta (N, 5, 4)."""
    return np.load(FIXTURES / "events-1/events.npy")[:, :-1].reshape(-1, 5, 4)


def _surrogate(name: str) -> Callable[[Path], object]:
    """Reads a surrogate of which one file is the case, predicts with it, and writes it as C++."""
    source, changed = (FIXTURES / name).parent, Path(name).name
    momenta = _five_legs()

    def read(folder: Path) -> object:
        for other in {"surrogate.json", "weights.safetensors"} - {changed}:
            (folder / other).write_bytes((source / other).read_bytes())
        if changed == "weights.safetensors":
            _believe(folder)
        surrogate = ampsure.load_surrogate(folder)
        legs = surrogate.process.n_legs
        prediction = surrogate.predict(momenta if legs == 5 else np.ones((2, legs, 4)))
        return prediction.interval(0.5), umami._model(surrogate, umami._Weights())

    return read


def _believe(folder: Path) -> None:
    """Make the description fit the weights, as somebody would who has changed them."""
    try:
        tensors = ampsure.surrogate.load_file(folder / "weights.safetensors")
    except Exception:
        return
    description = json.loads((folder / "surrogate.json").read_text())
    description["weights_checksum"] = ampsure.surrogate._tensor_checksum(tensors)
    (folder / "surrogate.json").write_text(json.dumps(description))


def _engine(checkpoint: Path) -> Engine:
    """A tiny training that resumes from a checkpoint."""
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(20, 3, generator=rng), torch.randn(20, generator=rng)
    config = TrainingConfig(epochs=2, batch_size=10, device="cpu")
    posterior = Point(StackedMLP(3, 2, hidden=(4,)))
    training = Training(posterior, get_likelihood("gaussian"), TrainingData(x, y, x, y), config)
    return Engine(training, checkpoint=checkpoint, fingerprint="x")


def _checkpoint() -> bytes:
    with TemporaryDirectory() as folder:
        _engine(Path(folder, "x.safetensors")).run()
        return Path(folder, "x.safetensors").read_bytes()


def _study(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        record = load_record(get_study(name), folder / "study.json")
        return record and markdown_report([record])

    return read


# files made of random parts

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
_ARRAY = hnp.arrays(
    st.one_of(hnp.floating_dtypes(), hnp.integer_dtypes(), hnp.boolean_dtypes(), hnp.unicode_string_dtypes(max_len=4)),
    st.one_of(hnp.array_shapes(max_dims=4, max_side=6, min_dims=0), st.sampled_from([(12, 5, 4), (12,), (2, 21)])),
)
_NAMES = ("momenta", "amplitude", "truth", "noise", "weights", "trainable", "process", "provenance", "schema_version")


def _saved(write: Callable[[io.BytesIO], object]) -> bytes:
    image = io.BytesIO()
    write(image)
    return image.getvalue()


def _h5(arrays: dict[str, Any], attributes: dict[str, Any]) -> bytes:
    def write(image: io.BytesIO) -> None:
        with h5py.File(image, "w", libver=("v110", "v110")) as file:
            file.attrs.update({"format": np.bytes_("ampsure-events"), "schema_version": 1})
            for name, value in attributes.items():
                file.attrs[name] = np.bytes_(json.dumps(value) or " ")
            for name, array in arrays.items():
                if array.dtype.kind != "U" and array.dtype != np.float16:
                    file[name] = array

    return _saved(write)


def _with(name: str) -> st.SearchStrategy[bytes]:
    """A document of ours in which random keys have random values."""
    document = json.loads((FIXTURES / name).read_bytes())
    changed = st.dictionaries(st.sampled_from(list(document)), _JSON, min_size=1, max_size=3)
    return (st.builds(lambda new: {**document, **new}, changed) | _JSON).map(lambda d: json.dumps(d).encode())


_LHE_LINE = st.lists(st.integers(-30, 30) | st.floats() | st.sampled_from(_WORDS), max_size=14).map(
    lambda row: " ".join(map(str, row))
)
_LHE = st.builds(
    lambda init, events: "\n".join(
        ['<LesHouchesEvents version="3.0">', "<init>", *init, "</init>"]
        + [line for event in events for line in ("<event>", *event, "</event>")]
        + ["</LesHouchesEvents>"]
    ).encode("utf-8", "replace"),
    st.lists(_LHE_LINE, max_size=3),
    st.lists(st.lists(_LHE_LINE | st.sampled_from(["<rwgt>", "<wgt id='amplitude'>1</wgt>", "</rwgt>"]), max_size=8)),
)
_TOML = st.dictionaries(
    st.sampled_from(["data", "features", "network", "likelihood", "posterior", "training", "method", "recipe", "x"]),
    st.dictionaries(
        st.sampled_from(["name", "path", "hidden", "members", "epochs", "seed", "beta", "inputs", "fractions", "x"]),
        _JSON.filter(lambda value: value is not None),
        max_size=4,
    ),
).map(lambda doc: "\n".join(f"{k} = {json.dumps(v)}".replace('": ', '" = ') for k, v in doc.items()).encode())
_TENSORS = st.builds(
    lambda header, body: struct.pack("<Q", len(header)) + header + body,
    st.dictionaries(
        st.text(max_size=8),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "F64", "I64", "X"]),
                "shape": st.lists(st.integers(0, 2**63), max_size=3),
                "data_offsets": st.lists(st.integers(0, 64), min_size=2, max_size=2),
            }
        ),
        max_size=3,
    ).map(lambda header: json.dumps(header).encode()),
    st.binary(max_size=64),
)


_CONFIG = b"""\
method = "repulsive"
[data]
path = "x"
fractions = [0.7, 0.1, 0.2]
[network]
hidden = [8, 8]
activation = "gelu"
[posterior]
members = 3
[training]
epochs = 5
seed = 1
"""


def _real(*names: str) -> list[bytes]:
    return [(FIXTURES / name).read_bytes() for name in names]


def _older(data: bytes) -> bytes:
    """The same HDF5 file in the oldest layout, which has no checksums of its own."""

    def write(image: io.BytesIO) -> None:
        with h5py.File(io.BytesIO(data)) as old, h5py.File(image, "w", libver="earliest") as new:
            new.attrs.update(old.attrs)
            for name in old:
                old.copy(name, new)

    return _saved(write)


def _pack(text: bytes, rng: Random) -> bytes:
    bomb = b"\0" * rng.choice((0,) * 40 + (2**26,))
    return gzip.compress(damage_text(text, rng) + bomb, 1, mtime=0)


def _load(suffix: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        path = folder / f"events{suffix}"
        return ampsure.load(path), list(ampsure.io.stream(path, 5))

    return read


def readers() -> list[Reader]:
    """All of them."""
    arrays = st.dictionaries(st.sampled_from(_NAMES), _ARRAY, max_size=5)
    npz = arrays.map(lambda a: _saved(lambda image: np.savez(image, **a)))
    npy = _ARRAY.map(lambda a: _saved(lambda image: np.save(image, a)))
    h5 = st.builds(
        _h5, arrays, st.dictionaries(st.sampled_from(["process", "provenance", "checksum", "format"]), _JSON)
    )
    some = ampsure.load_surrogate(FIXTURES / "surrogate-3/mse")

    def predict(suffix: str) -> Callable[[Path], object]:
        return lambda folder: [some.predict(part) for part in _momenta(folder / f"momenta{suffix}", some)]

    native, lhe = _real("events-1/events.h5"), _real("events-1/events.lhe")
    z, y = _real("events-1/events.npz"), _real("events-1/events.npy")
    found = [
        Reader("events.h5", native, [damage, damage_h5], h5, _load(".h5"), 0.75),
        Reader("older/events.h5", [_older(native[0])], [damage], h5, _load(".h5"), 0.5),
        Reader("events.lhe", lhe, [damage, damage_text], _LHE, _load(".lhe")),
        Reader(
            "events.lhe.gz", [gzip.compress(lhe[0], mtime=0)], [damage], _LHE.map(gzip.compress), _load(".lhe.gz"), 0.25
        ),
        Reader("packed/events.lhe.gz", lhe, [_pack], _LHE.map(gzip.compress), _load(".lhe.gz"), 0.25),
        Reader("events.npz", z, [damage, damage_npz], npz, _load(".npz")),
        Reader("events.npy", y, [damage, damage_npy], npy, _load(".npy"), 0.5),
        Reader("momenta.npz", z, [damage, damage_npz], npz, predict(".npz"), 0.5),
        Reader(
            "momenta.npy",
            [_saved(lambda image: np.save(image, _five_legs()))],
            [damage, damage_npy],
            npy,
            predict(".npy"),
            0.5,
        ),
        Reader(
            "config.toml",
            [_CONFIG],
            [damage, damage_text],
            _TOML,
            lambda f: config_of(f / "config.toml", *[None] * 4),
            1.5,
        ),
        Reader(
            "x.safetensors",
            [_checkpoint()],
            [damage, damage_tensors, damage_state],
            _TENSORS,
            lambda f: _engine(f / "x.safetensors").run(),
        ),
    ]
    for folder in ("surrogate-3/recommended", "surrogate-3/bayesian", "surrogate-4/laplace"):
        json_file, weights = f"{folder}/surrogate.json", f"{folder}/weights.safetensors"
        changes = [damage_text, damage_json, damage_json]
        found += [
            Reader(json_file, _real(json_file), changes, _with(json_file), _surrogate(json_file), 0.75),
            Reader(weights, _real(weights), [damage, damage_tensors], _TENSORS, _surrogate(weights), 0.5),
        ]
    for study in ("true-amplitudes", "error-propagation"):
        real = f"study-1/{study}-smoke.json"
        found.append(
            Reader(f"{study}/study.json", _real(real), [damage_text, damage_json], _with(real), _study(study), 0.5)
        )
    return found


# running the cases


def attempt(reader: Reader, content: bytes, folder: Path) -> tuple[str, str]:
    """How a case ends, "refused", "accepted" or a failure, and what was said."""
    for path in folder.iterdir():
        path.unlink()
    (folder / Path(reader.name).name).write_bytes(content)
    try:
        reader.read(folder)
    except AmpsureError as error:
        sentence = str(error)
        if "\n" in sentence or len(sentence) > 1000:
            return "not a sentence", sentence
        return ("memory", sentence) if "fit into memory" in sentence else ("refused", sentence)
    except MemoryError:
        return "memory", traceback.format_exc()
    except Exception:
        return "traceback", traceback.format_exc()
    return ("code was run", "") if Path("code-was-run").exists() else ("accepted", "")


def mutated(reader: Reader, number: int) -> bytes:
    """Case `number` of a reader."""
    rng = Random(f"{reader.name} {number}")
    return rng.choice(reader.mutations)(rng.choice(reader.seeds), rng)


def run(cases: int, made: int, only: str = "") -> Report:
    """Run so many mutated files, and files made by hypothesis, of all readers together."""
    report, chosen = Report(), [reader for reader in readers() if only in reader.name]
    started, total = time.monotonic(), sum(reader.share for reader in chosen)
    for reader in chosen:
        counts = report.outcomes.setdefault(reader.name, Counter())
        _guarded(reader, range(round(cases * reader.share / total)), mutated, counts, report.failures)
        examples = round(made * reader.share / total)
        _guarded(reader, range(examples, examples + 1), _random_files, counts, report.failures)
        if not counts["refused"]:
            report.failures.append(f"{reader.name}: refused nothing, so nothing was read")
    report.seconds = time.monotonic() - started
    return report


def _random_files(reader: Reader, examples: int) -> list[bytes]:
    """Files that hypothesis makes; always the same."""
    found: list[bytes] = []
    quiet = settings(
        max_examples=max(examples, 1), database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    def keep(content: bytes) -> None:
        found.append(content)

    seed(1)(quiet(given(reader.strategy)(keep)))()
    return found


def _guarded(
    reader: Reader,
    numbers: range,
    make: Callable[[Reader, int], bytes | list[bytes]],
    counts: Counter[str],
    failures: list[str],
) -> None:
    """Run cases in a process of their own, and in another one after each that does not survive."""
    at, position = mmap(-1, 8), 0
    while position < len(numbers):
        receive, send = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.close(receive)
            _work(reader, numbers[position:], make, at, send)
        os.close(send)
        with os.fdopen(receive) as told:
            for line in told:
                outcome, number, words = json.loads(line)
                counts[outcome] += 1
                if outcome not in ("refused", "accepted"):
                    failures.append(f"{reader.name}, case {number}: {outcome}: {words}")
        _, status = os.waitpid(child, 0)
        if not status:
            return
        (number,) = struct.unpack("q", at[:8])
        died = "hang" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF else "crash"
        counts[died] += 1
        failures.append(f"{reader.name}, case {number}: {died}, status {status}")
        position = numbers.index(number) + 1


def _work(
    reader: Reader, numbers: range, make: Callable[[Reader, int], bytes | list[bytes]], at: mmap, send: int
) -> None:
    """The life of such a process: little room, and little time for each case."""
    status = 1
    try:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, resource.RLIM_INFINITY))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever it is doing
        with TemporaryDirectory() as home, os.fdopen(send, "w") as told:
            os.chdir(home)
            folder = Path(home, "case")
            folder.mkdir()
            for number in numbers:
                at[:8] = struct.pack("q", number)
                made = make(reader, number)
                for content in made if isinstance(made, list) else [made]:
                    signal.setitimer(signal.ITIMER_PROF, SECONDS)
                    outcome, words = attempt(reader, content, folder)
                    signal.setitimer(signal.ITIMER_PROF, 0)
                    told.write(
                        json.dumps([outcome, number, words if outcome not in ("refused", "accepted") else ""]) + "\n"
                    )
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--mutated", type=int, default=90_000, help="real files, damaged")
    parser.add_argument("--made", type=int, default=12_000, help="files made by hypothesis")
    parser.add_argument("--only", default="", help="readers whose file has this in its name")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report = run(arguments.mutated, arguments.made, arguments.only)
    table = Table("file", "cases", "refused", "accepted", "failed")
    rows = [(name, sum(c.values()), c["refused"], c["accepted"]) for name, c in report.outcomes.items()]
    for name, *numbers in [*rows, ("all", *(sum(row[k] for row in rows) for k in (1, 2, 3)))]:
        table.add_row(name, *(f"{n:,}" for n in (*numbers, numbers[0] - numbers[1] - numbers[2])))
    Console(width=120).print(table)
    for failure in report.failures[:50]:
        print(failure)
    print(f"{report.seconds:.0f} s")
    sys.exit(bool(report.failures))


if __name__ == "__main__":
    main()
