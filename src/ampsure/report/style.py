"""The look of all figures: what a paper needs, told apart by all eyes and in print."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from ampsure.evaluation import Binned
from ampsure.io import make_folder, replacing

__all__ = [
    "Drawing",
    "colour",
    "curve",
    "exponents",
    "histogram",
    "legend",
    "literal",
    "panels",
    "save_figure",
    "to_svg",
    "unit_gaussian",
]

Floats = NDArray[np.float64]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LINES = ("-", "--", ":", "-.")
_STYLE: Any = {
    "font.size": 11,
    "axes.labelsize": 12,
    "lines.linewidth": 1.5,
    "xtick.direction": "in",
    "ytick.direction": "in",
    "xtick.top": True,
    "ytick.right": True,
    "xtick.minor.visible": True,
    "ytick.minor.visible": True,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "ampsure",  # the same figure gives the same file
}


class Drawing(NamedTuple):
    """A figure with what is said about it.

    Args:
        name: of its files and its place in the page.
        caption: what is shown.
        alternative: what is seen, for those who do not see it.
    """

    figure: Figure
    name: str
    caption: str
    alternative: str


def literal(text: str) -> str:
    r"""Text from elsewhere as a label: a dollar is a dollar, not the start of a formula.

    >>> literal("a $1 run")
    'a \\$1 run'
    """
    return text.replace("$", r"\$")


def exponents(text: str) -> str:
    """Powers as they are written by hand.

    >>> exponents("1.2e-05 GeV^-2")
    '1.2×10⁻⁵ GeV⁻²'
    """
    text = re.sub(r"(?<=\d)e([+-]\d+)\b", lambda power: f"×10^{int(power[1])}", text)
    return re.sub(r"\^(-?\d+)", lambda power: power[1].translate(_RAISED), text)


def colour(k: int) -> dict[str, Any]:
    """Colour and line style of the k-th series."""
    return {"color": _COLOURS[k % len(_COLOURS)], "linestyle": _LINES[k % len(_LINES)]}


def panels(
    rows: int = 1, columns: int = 1, *, heights: tuple[float, ...] | None = None, **options: Any
) -> tuple[Figure, Any]:
    """A figure and its axes (rows, columns), drawn without a display.

    Args:
        heights: relative heights of the rows, e.g. (3, 1) for a ratio panel.
        options: of `Figure.subplots`.
    """
    with mpl.rc_context(_STYLE):
        total = 3.7 * sum(heights) / max(heights) if heights else 3.7 * rows
        figure = Figure(figsize=(4.9 * columns, total), layout="constrained")
        ratios = {"height_ratios": heights} if heights else None
        axes = figure.subplots(rows, columns, gridspec_kw=ratios, squeeze=False, **options)
    return figure, axes


def histogram(
    axes: Axes, values: ArrayLike, edges: Floats, k: int = 0, *, weights: Floats | None = None, **options: Any
) -> None:
    """Normalised histogram of values (N,) as steps in the style of series k; under- and overflow are left out."""
    values = np.asarray(values)
    counts, _ = np.histogram(values, edges, weights=weights)
    total = len(values) if weights is None else weights.sum()
    axes.stairs(counts / max(total, 1e-300) / np.diff(edges), edges, **{**colour(k), **options})


def curve(axes: Axes, data: Binned, k: int = 0, *, scale: float = 1.0, **options: Any) -> None:
    """A binned statistic as a line in the style of series k, with its band."""
    look = {**colour(k), **options}
    value, low, high = (scale * np.append(v, v[-1]) for v in (data.value, data.low, data.high))
    (line,) = axes.step(data.edges, value, where="post", **look)
    vars(line)["band"] = low, high  # for those who ask the page for numbers
    axes.fill_between(data.edges, low, high, step="post", color=look["color"], alpha=0.2, linewidth=0)


def unit_gaussian(axes: Axes, low: float = -4, high: float = 4) -> None:
    """The pull everybody hopes for."""
    t = np.linspace(low, high, 201)
    axes.plot(t, np.exp(-t * t / 2) / np.sqrt(2 * np.pi), color="0.6", linewidth=2.5, zorder=0, label="unit Gaussian")


def legend(axes: Axes, **options: Any) -> None:
    """The names of all series, without a frame."""
    axes.legend(**{"frameon": False, "fontsize": 9, **options})


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write the figure as `stem`.pdf and `stem`.png; each whole or not at all."""
    make_folder(stem.parent)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("pdf", "png")]
    for path in paths:
        with replacing(path) as temporary:
            temporary.write_bytes(rendered(figure, path.suffix[1:]))
    return paths


def rendered(figure: Figure, kind: str) -> bytes:
    """The figure as a file, "pdf", "png" or "svg"; the same at any time."""
    image, dated = BytesIO(), {"pdf": "CreationDate", "svg": "Date"}  # on a full disk, matplotlib leaves files open
    with _rendering():
        figure.savefig(image, format=kind, dpi=160, metadata={dated[kind]: None} if kind in dated else None)
    return image.getvalue()


def to_svg(figure: Figure) -> str:
    """The figure as an <svg> element on a clear background; its text stays text."""
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with _rendering(), StringIO() as file:
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
        svg = file.getvalue()
    return svg[svg.index("<svg") :]


@contextmanager
def _rendering() -> Iterator[None]:
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from"
        )  # names may be in any script; a box is no reason to fail
        yield
