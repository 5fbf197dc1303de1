"""The report of one surrogate: what it is, how good it is, and where."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from ampsure._version import __version__
from ampsure.config import METHODS, RECIPES, Config, resolve

from . import page as p
from .examination import ACCURACY, PULL, SCORES, Examination, Metric, method_in_words, method_of, number, verdict_of
from .figures import (
    across,
    coverage_curves,
    deviation_sizes,
    deviations,
    pull_distributions,
    reliability,
    training_history,
)
from .style import Drawing

__all__ = ["HINT", "reproduce", "surrogate_drawings", "surrogate_report"]

_SYST, _STAT = r"$\sigma_\mathrm{syst}/A$", r"$\sigma_\mathrm{stat}/A$"
_PULLS = (
    "t_total = (A_NN − A_train)/σ_tot, t_systematic = (A_NN − A_train)/σ_syst, t_statistical = (A_NN − A_true)/σ_stat. "
    "The core is the half-width of the interval around zero with 68.27 % of the pulls."
)
HINT = p.Html(
    '<p class="hint"><small>Figures: hover for values. Zoom with the buttons, by pinching, with Ctrl and the wheel, or '
    "with the wheel after a click; drag to move, double-click for the whole figure.</small></p>"
)


def surrogate_report(e: Examination, drawings: list[Drawing] | None = None) -> str:
    """The page, with its figures in it."""
    drawn = {d.name: p.figure(*d) for d in (surrogate_drawings(e) if drawings is None else drawings)}

    def shown(*beginnings: str) -> list[p.Html]:
        return [block for name, block in drawn.items() if name.startswith(beginnings)]

    def listed(metrics: list[Metric]) -> p.Html:
        return p.table([[m.label, m.written(e), m.target] for m in metrics], ["", "found", "ideal"])

    j, pulls = e.judgement, e.judgement.pulls
    rows = [[m.label, *map(m.written, pulls.values()), m.target] for m in PULL]
    tested = p.paragraph(p.formula("Δ = (A_NN − A_true)/A_true"), f"on {j.events:,} test events: {e.source}.")
    blocks = [
        verdict_of(j),
        p.tiles(_tiles(e)),
        HINT,
        p.section("Accuracy", tested, p.figures(*shown("deviation"), listed(ACCURACY))),
        p.section(
            "Calibration",
            p.paragraph(p.formula(_PULLS if pulls else "This method gives no uncertainty.")),
            p.figures(*shown("pulls", "coverage", "reliability")),
            p.columns(*([p.table(rows, ["pull", *pulls, "Gaussian"])] if pulls else []), listed(SCORES)),
        ),
        p.section("Across phase space", p.figures(*shown("across"))),
        p.section("Training", p.figures(*shown("training"))),
        p.section("What was trained on what", p.table(_facts(e)), *_origin(e)),
    ]
    size = f"{len(e.events):,} test events"
    subtitle = f"{e.surrogate.process.label} · {method_in_words(e.surrogate.config)} · {size}"
    return p.page(f"Surrogate {e.name}", blocks, subtitle=subtitle, footer=f"Made by ampsure {__version__}.")


def surrogate_drawings(e: Examination) -> list[Drawing]:
    """All figures about one surrogate; those about uncertainties only where it has some."""
    j, a = e.judgement, e.judgement.accuracy
    sizes = {r"$|\Delta|$": abs(e.delta)} | ({r"$\sigma_\mathrm{tot}/A$": e.sigma} if e.pulls else {})
    drawings = [
        Drawing(
            deviation_sizes(sizes),
            "deviation-size",
            "Size of the relative deviation from the truth" + (", and what the surrogate expects." if e.pulls else "."),
            f"Distribution of |Δ|: median {a.median:.2g}, 99 % quantile {a.quantile99:.2g}, largest {a.maximum:.2g}.",
        ),
        Drawing(
            deviations({r"$\Delta$": e.delta}),
            "deviation",
            "Relative deviation from the truth; 1 % of the events are outside.",
            f"Distribution of Δ: mean {a.bias:+.2g} ± {a.bias_error:.1g}; {j.bias.share_negative:.1%} are too small.",
        ),
    ]
    if e.pulls:
        drawings.append(
            Drawing(
                pull_distributions(e.pulls),
                "pulls",
                "Pulls against the unit Gaussian; below, the same on a logarithmic axis.",
                " ".join(
                    f"The {kind} pull has mean {s.mean:+.2f}, width {s.width:.2f} and core {s.core:.2f}."
                    for kind, s in j.pulls.items()
                ),
            )
        )
    if j.coverage is not None:
        total = j.pulls["total"]
        drawings.append(
            Drawing(
                coverage_curves({"total pull": j.coverage}),
                "coverage",
                p.formula("Share of events in central intervals of σ_tot; below, the difference to what it should be."),
                f"{total.coverage68:.1%} of the events are within one σ_tot and {total.coverage95:.1%} within two, "
                "instead of 68.3 % and 95.4 %.",
            )
        )
    if bins := e.reliability():
        expected, found = (data.value for data in bins)
        ratio = found / expected
        drawings.append(
            Drawing(
                reliability({"residual": bins}),
                "reliability",
                p.formula("Residuals against σ_tot/A, in bins of equal size; on the line, σ is as large as they are."),
                f"rms residual over rms σ is between {ratio.min():.2f} and {ratio.max():.2f}; 1 is calibrated.",
            )
        )
    for part in j.observables:
        names = {"systematic": _SYST, "statistical": _STAT}
        curves = {names[kind]: data for kind, data in part.sigma.items()} | {r"median $|\Delta|$": part.deviation}
        core, x = part.core, part.observable
        words = f"Median |Δ| between {_span(part.deviation.value)} over {x.symbol}."
        if core is not None:
            words += f" The core of the pull is between {_span(core.value)}; 1 is calibrated."
        drawings.append(
            Drawing(
                across(x, curves, {} if core is None else {"core of the total pull": core}),
                f"across-{x.name}",
                f"Uncertainties and errors against {x.symbol}"
                + (", medians in bins" if core is None else ", medians in bins; below, the core of the total pull")
                + ". A Gaussian error has a median of 0.67 σ.",
                words,
            )
        )
    for stage, epochs in e.surrogate.history.items():
        if epochs:
            last = epochs[-1]
            drawings.append(
                Drawing(
                    training_history(epochs),
                    f"training-{stage}",
                    f"Training of the {stage}: mean loss of training and validation events; below, the learning rate.",
                    f"After {len(epochs)} epochs the loss is {last['training_loss']:.3g} on training events and "
                    f"{last['validation_loss']:.3g} on validation events.",
                )
            )
    return drawings


def _span(values: Any) -> str:
    finite = values[values == values]
    return f"{finite.min():.2g} and {finite.max():.2g}"


def _tiles(e: Examination) -> Iterator[tuple[str, str, str]]:
    j = e.judgement
    yield "median |Δ|", number(j.accuracy.median, ".2g"), f"99 % below {number(j.accuracy.quantile99, '.2g')}"
    if total := j.pulls.get("total"):
        yield "core of the pull", number(total.core, ".2f"), "1 is calibrated"
        yield "within one σ", number(total.coverage68, ".1%"), "68.3 % is calibrated"
    if e.residual is not None:
        value, error = number(e.residual.value, "z.3f"), number(e.residual.error, ".3f")
        yield "predictable residual, R²", f"{value} ± {error}", "0 is nothing left to learn"


def _facts(e: Examination) -> Iterator[tuple[str, object]]:
    s, c, origin = e.surrogate, e.surrogate.config, e.surrogate.provenance
    data = _mapping(origin.get("data"))
    yield "process", f"{s.process.name}: {s.process.label}"
    yield "method", method_in_words(c)
    recipe, changed = _recipe(c)
    yield "recipe", recipe + (f", but {', '.join(changed)}" if changed else "")
    widths = " → ".join(map(str, s.network.widths))
    weights = sum(tensor.numel() for tensor in s.network.state_dict().values())
    count = f"{s.network.members} × " if s.network.members > 1 else ""
    residual = ", residual" if c.network.residual else ""
    yield "network", f"{count}{widths}, {c.network.activation}{residual}; {weights:,} parameters"
    yield "features and target", f"{c.features.inputs}; {c.features.target}"
    t = c.training
    epochs = len(next(iter(s.history.values()), []))
    yield (
        "training",
        f"{epochs:,} epochs, {t.optimizer}, learning rate {t.learning_rate:g} ({t.schedule}), "
        f"batches of {t.batch_size:,}, seed {t.seed}",
    )
    if data:
        shares = f"{_count(data, 'training')} for training, {_count(data, 'validation')} for validation"
        yield "events", f"{_count(data, 'events')}: {shares}" + (f"; {c.data.path}" if c.data.path else "")
        yield "checksum of the events", data.get("checksum", "–")
    provenance = _mapping(origin.get("events"))
    if command := provenance.get("command"):
        yield "made by", _words(command)
    yield "disturbances", "; ".join(map(_words, _list(provenance.get("disturbances")))) or "none"
    yield "tested on", f"{len(e.events):,} events: {e.source}; {e.judgement.outside:,} outside the training domain"
    yield "checksum of the test events", e.checksum
    yield "device and precision", f"{origin.get('device', '–')}, {c.network.precision}"
    yield "versions", _words(origin.get("versions", "–"))


def _origin(e: Examination) -> Iterator[p.Html]:
    path = e.surrogate.config.data.path
    yield p.paragraph("To train it again" + (":" if path else ", with the events saved as events.h5:"))
    yield p.code(reproduce(e.surrogate.config))
    settings = e.surrogate.config.model_dump(mode="json").items()
    rows = [(f"{section}.{key}", json.dumps(v)) for section, values in settings for key, v in values.items()]
    yield p.details("All settings", p.table(rows))
    provenance = json.dumps(e.surrogate.provenance, indent=1, ensure_ascii=False, default=str)
    yield p.details("All of the provenance", p.code(provenance))


def reproduce(config: Config, output: str = "again") -> str:
    """The command that trains with this configuration."""
    method, (recipe, _) = method_of(config), _recipe(config)
    name = method or "repulsive"
    base, wanted = (c.model_dump(mode="json") for c in (resolve(name, recipe), config))
    words = ["ampsure", "train", "--data", config.data.path or "events.h5", "--method", name, "--recipe", recipe]
    words += ["-o", output]
    for section, values in wanted.items():
        other = values.get("name") != base[section].get("name")  # then nothing of the base carries over
        words += [
            word
            for key, value in values.items()
            if (section, key) != ("data", "path") and (other or key not in base[section] or value != base[section][key])
            for word in ("--set", f"{section}.{key}={json.dumps(value)}")
        ]
    return shlex.join(words)


def _recipe(config: Config) -> tuple[str, list[str]]:
    """The recipe nearest to a configuration, and what was changed in it."""
    found: dict[str, list[str]] = {}
    method = METHODS.get(method_of(config) or "", {})
    for name, sections in RECIPES.items():
        found[name] = [
            f"{section}.{key} = {json.dumps(getattr(getattr(config, section), key))}"
            for section, values in sections.items()
            for key, value in {**values, **method.get(section, {})}.items()
            if getattr(getattr(config, section), key) != value
        ]
    name = min(found, key=lambda recipe: len(found[recipe]))
    return name, found[name]


def _mapping(value: object) -> dict[str, Any]:
    """Provenance is free in form: empty unless it is a dictionary."""
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _count(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return f"{value:,}" if isinstance(value, int) else "–"


def _words(value: object) -> str:
    """A record in words: 'kind Gap, half_width 40.0'."""
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
