"""Building blocks of pages: one HTML file that needs nothing else, for screen, phone and print.

A page is made of blocks, and every block is `Html`. Whatever is not `Html` is text and is escaped.

>>> table([["width", 0.98, "<1>"]], header=["", "found", "ideal"]).count("&lt;1&gt;")
1
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch
from numpy.typing import NDArray

from .style import to_svg

__all__ = [
    "Html",
    "badge",
    "best",
    "code",
    "columns",
    "details",
    "figure",
    "figures",
    "formula",
    "join",
    "note",
    "numbers",
    "page",
    "paragraph",
    "section",
    "table",
    "text",
    "tiles",
    "verdict",
]

Kind = Literal["good", "warn", "bad", "none"]
_SYMBOLS = {"good": "✓", "warn": "▼", "bad": "▲", "none": "–"}


class Html(str):
    """HTML, as opposed to text."""

    __slots__ = ()


def text(value: object) -> Html:
    """Anything as HTML: escaped, unless it is `Html` already.

    >>> text("a < b")
    'a &lt; b'
    """
    return value if isinstance(value, Html) else Html(escape(str(value)))


def formula(value: str) -> Html:
    """Text with indices.

    >>> formula("A_NN < 1")
    'A<sub>NN</sub> &lt; 1'
    """
    return Html(re.sub(r"(\w)_(\w+)", r"\1<sub>\2</sub>", escape(value)))


def join(*parts: object) -> Html:
    """Blocks, one after the other."""
    return Html("\n".join(map(text, parts)))


def paragraph(*parts: object) -> Html:
    return Html(f"<p>{' '.join(map(text, parts))}</p>")


def note(*parts: object) -> Html:
    """A warning nobody should miss."""
    return Html(f'<p class="note" role="note">{" ".join(map(text, parts))}</p>')


def code(value: str) -> Html:
    """Something to copy."""
    return Html(f"<pre><code>{escape(value)}</code></pre>")


def badge(label: object, kind: Kind = "none") -> Html:
    """A word and a symbol in a colour: nothing is said by the colour alone."""
    return Html(f'<span class="badge {kind}"><span aria-hidden="true">{_SYMBOLS[kind]}</span> {text(label)}</span>')


def best(value: object) -> Html:
    """A value that is better than its neighbours."""
    return Html(f'<strong class="best">{text(value)}<span class="star" title="best">★</span></strong>')


def verdict(mark: Html, sentences: Sequence[object], kind: Kind = "none") -> Html:
    """What it all means: a badge, one sentence, and the rest below it."""
    first, *rest = map(text, sentences)
    items = f"<ul>{''.join(f'<li>{sentence}</li>' for sentence in rest)}</ul>" if rest else ""
    return Html(f'<div class="verdict {kind}">{mark}<p>{first}</p>{items}</div>')


def tiles(values: Iterable[tuple[object, object, object]]) -> Html:
    """Few numbers that matter most: (label, value, remark)."""
    items = (
        f"<div><dt>{text(label)}</dt><dd><b>{text(value)}</b><small>{text(remark)}</small></dd></div>"
        for label, value, remark in values
    )
    return Html(f'<dl class="tiles">{"".join(items)}</dl>')


def section(title: str, *blocks: object) -> Html:
    name = re.sub(r"\W+", "-", title.lower()).strip("-")
    return Html(f'<section id="{name}"><h2>{escape(title)}</h2>\n{join(*blocks)}\n</section>')


def details(summary: str, *blocks: object) -> Html:
    """What is there for those who open it."""
    return Html(f"<details><summary>{escape(summary)}</summary>{join(*blocks)}</details>")


def table(rows: Iterable[Sequence[object]], header: Sequence[object] | None = None) -> Html:
    """A table whose first column names the rows; with a header one of numbers, without one of facts."""
    head = (
        "" if header is None else f"<thead><tr>{''.join(f'<th scope=col>{text(h)}</th>' for h in header)}</tr></thead>"
    )
    body = "\n".join(
        f"<tr><th scope=row>{text(first)}</th>{''.join(f'<td>{text(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in rows
    )
    kind = "facts" if header is None else "numbers"
    return Html(f'<div class="scroll"><table class="{kind}">{head}<tbody>{body}</tbody></table></div>')


def columns(*blocks: object) -> Html:
    """Tables side by side where there is room."""
    return Html(f'<div class="columns">{"".join(f"<div>{text(block)}</div>" for block in blocks)}</div>')


def figures(*blocks: Html) -> Html:
    """Figures, or tables among them, side by side where there is room."""
    return Html(f'<div class="figures">{"".join(blocks)}</div>')


def figure(drawn: Figure, name: str, caption: object, alternative: str) -> Html:
    """A figure to look at, hover over and zoom into, with its numbers below.

    Args:
        name: one of its own in the page.
        alternative: what is seen, for those who do not see it; the numbers of all labelled curves are added.
    """
    svg = to_svg(drawn)
    # names inside are unique in a figure, not in a page; and a style in there would be one of the page
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", re.sub(r"<style.*?</style>", "", svg, flags=re.S))
    shown = f'role="img" aria-label="{escape(alternative)}" preserveAspectRatio="xMidYMid meet"'
    svg = re.sub(r'^<svg [^>]*?(viewBox="[^"]*")[^>]*>', rf"<svg \1 {_template(shown)}>", svg, count=1)
    panels = _panels(drawn)
    data = json.dumps(panels, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    buttons = "".join(
        f'<button type="button" data-zoom="{factor}" aria-label="{label}" title="{label}">{sign}</button>'
        for factor, label, sign in ((1.5, "Zoom in", "+"), (1 / 1.5, "Zoom out", "−"), (0, "Whole figure", "⤢"))
    )
    return Html(
        f'<figure class="plot" id="figure-{name}"><div class="view" tabindex="0" role="group">{svg}'
        f'<div class="readout" hidden></div></div><div class="controls">{buttons}</div>'
        f"<figcaption>{text(caption)}</figcaption>"
        f'{details("Numbers", paragraph(alternative), *numbers(panels))}<script type="application/json">{data}</script>'
        "</figure>"
    )


def page(title: str, blocks: Iterable[object], *, subtitle: object = "", footer: object = "") -> str:
    """A whole page; sections are listed at its top."""
    body = join(*blocks)
    sections = re.findall(r'<section id="([^"]*)"><h2>(.*?)</h2>', body)
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading in sections)
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="subtitle">{text(subtitle)}</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{body}
</main>
<footer>{text(footer)}</footer>
<script>{script}</script>
</body>
</html>
"""


def numbers(panels: list[dict[str, Any]], most: int = 50) -> list[Html]:
    """Tables of the curves in the panels of a figure: one for all that share their x; long ones are thinned out."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for panel in panels:
        for curve in panel["curves"]:
            groups.setdefault((curve["kind"] == "step", *curve["x"]), []).append({**curve, "axis": panel["label"]})
    tables = []
    for (step, *x), curves in groups.items():
        rows = len(x) - 1 if step else len(x)
        kept = sorted({*range(0, rows, -(-rows // most)), rows - 1}) if rows else []
        kept = [i for i in kept if x[i] is not None]
        first = [f"{x[i]:.4g} – {x[i + 1]:.4g}" if step else f"{x[i]:.4g}" for i in kept]
        columns = [[_cell(curve, i) for i in kept] for curve in curves]
        tables.append(table(zip(first, *columns, strict=True), [curves[0]["axis"], *(c["label"] for c in curves)]))
    return tables


def _cell(curve: dict[str, Any], i: int) -> str:
    value = curve["y"][i]
    if value is None:
        return "–"
    low, high = (bound[i] for bound in curve["band"]) if curve["band"] else (None, None)
    return f"{value:.4g}" if low is None or high is None else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def _panels(drawn: Figure) -> list[dict[str, Any]]:
    """What a reader can ask a drawn figure for: where its axes are in the SVG, and the data of all labelled curves."""
    width, height = 72 * drawn.get_size_inches()
    found, label = [], ""
    for axes in reversed(drawn.axes):  # a panel without a label of its own shares the one below
        label = _plain(axes.get_xlabel()) or label
        if axes.get_xscale() not in ("linear", "log"):
            continue
        place = axes.get_position()
        box = [place.x0 * width, (1 - place.y1) * height, place.x1 * width, (1 - place.y0) * height]
        range_ = [float(limit) for limit in axes.get_xlim()]
        logarithmic = axes.get_xscale() == "log"
        found.append({"box": _short(box), "range": range_, "log": logarithmic, "label": label, "curves": _curves(axes)})
    return found[::-1]


def _curves(axes: Axes) -> list[dict[str, Any]]:
    """Label, colour, kind (step, line, points), x, y and band of everything labelled that is a function of x."""
    bars = {bar.lines[0]: bar for bar in axes.containers if isinstance(bar, ErrorbarContainer)}
    curves: list[dict[str, Any]] = []
    for artist in (*axes.patches, *axes.lines):
        bar = bars.get(artist) if isinstance(artist, Line2D) else None
        label, band = str((bar or artist).get_label()), vars(artist).get("band", ())
        if label.startswith("_"):  # matplotlib's own name for what has none
            continue
        if isinstance(artist, StepPatch):
            y, x, _ = artist.get_data()
            kind, colour = "step", artist.get_edgecolor()
        elif isinstance(artist, Line2D):
            x, y = (np.asarray(values, dtype=np.float64) for values in artist.get_data())
            plain = "points" if artist.get_linestyle() in ("None", "none", "", " ") else "line"
            kind, colour = "step" if artist.get_drawstyle() == "steps-post" else plain, artist.get_color()
        else:
            continue
        if bar is not None and bar.has_yerr:
            band = np.array([segment[:, 1] for segment in bar.lines[2][-1].get_segments()]).T
        values = {"x": _short(x), "y": _short(y), "band": [_short(bound) for bound in band] or None}
        curves.append({"label": _plain(label), "colour": to_hex(colour), "kind": kind, **values})
    return curves


def _short(values: Sequence[float] | NDArray[np.float64]) -> list[float | None]:
    """Five digits; None for what is not finite."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def _plain(label: str) -> str:
    r"""A label of matplotlib as text.

    >>> _plain(r"$\sigma_\mathrm{tot}/A$ in \$")
    'σ_tot/A in $'
    """
    label = re.sub(r"\\mathrm\{(.*?)\}", r"\1", label.replace(r"\sigma", "σ").replace(r"\Delta", "Δ"))
    return re.sub(r"(?<!\\)\$", "", label).replace(r"\$", "$")


def _template(replacement: str) -> str:
    return replacement.replace("\\", r"\\")
