"""Several surrogates side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import hypot

from ampsure._version import __version__
from ampsure.evaluation import PullSummary, binned

from . import page as p
from .examination import ACCURACY, PULL, SCORES, Examination, Metric, method_in_words, number, verdict_of
from .figures import across, coverage_curves, deviation_sizes, pull_distributions
from .style import Drawing, literal
from .surrogate import HINT

__all__ = ["comparison_drawings", "comparison_report"]


def comparison_report(runs: Sequence[Examination], drawings: list[Drawing] | None = None) -> str:
    """The page, with its figures in it."""
    drawn = [p.figure(*d) for d in (comparison_drawings(runs) if drawings is None else drawings)]
    names = _names(runs)
    facts = [
        (name, e.surrogate.process.label, method_in_words(e.surrogate.config), f"{len(e.events):,} events: {e.source}")
        for name, e in zip(names, runs, strict=True)
    ]
    blocks: list[object] = []
    if len({e.checksum for e in runs}) > 1:
        tested = "; ".join(f"{_letter(k)} on {e.checksum[:12]}" for k, e in enumerate(runs))
        words = "These runs were tested on different events, so small differences may come from the events alone"
        blocks.append(p.note(f"{words} (checksums: {tested}). Give --data FILE to test all of them on the same ones."))
    else:
        blocks.append(p.paragraph(f"All runs were tested on the same events, checksum {runs[0].checksum[:12]}."))
    verdicts = (
        p.join(p.Html(f"<h3>{p.text(name)}</h3>"), verdict_of(e.judgement)) for name, e in zip(names, runs, strict=True)
    )
    blocks += [
        p.table(facts),
        p.section("Verdicts", *verdicts),
        p.section("Numbers", p.table(_rows(runs), ["", *names, "ideal"])),
        p.section("Figures", HINT, p.figures(*drawn)),
    ]
    subtitle = f"{len(runs)} runs, the best value of each row marked ★"
    return p.page("Comparison of surrogates", blocks, subtitle=subtitle, footer=f"Made by ampsure {__version__}.")


def comparison_drawings(runs: Sequence[Examination]) -> list[Drawing]:
    """All runs in one figure each: |Delta|, total pull, coverage, sigma and core against amplitude and mass."""
    labelled = {literal(name): e for name, e in zip(_names(runs), runs, strict=True)}
    drawings = [
        Drawing(
            deviation_sizes({label: abs(e.delta) for label, e in labelled.items()}),
            "deviation-size",
            "Size of the relative deviation from the truth.",
            f"Distributions of |Δ|; medians: {_each(runs, lambda e: e.judgement.accuracy.median, '.2g')}.",
        )
    ]
    labelled = {label: e for label, e in labelled.items() if "total" in e.pulls}
    if not labelled:
        return drawings
    drawings += [
        Drawing(
            pull_distributions({label: e.pulls["total"] for label, e in labelled.items()}),
            "pull",
            "Total pull against the unit Gaussian; below, the same on a logarithmic axis.",
            f"Distributions of the total pull; cores: {_each(runs, _of_pull(lambda s: s.core), '.2f')}.",
        ),
        Drawing(
            coverage_curves({label: c for label, e in labelled.items() if (c := e.judgement.coverage) is not None}),
            "coverage",
            p.formula("Share of events in central intervals of σ_tot; below, the difference to what it should be."),
            f"Found within one σ_tot: {_each(runs, _of_pull(lambda s: s.coverage68), '.1%')}; 68.3 % is calibrated.",
        ),
    ]
    for name in ("amplitude", "mass"):
        sigmas, cores, shown = {}, {}, None
        for label, e in labelled.items():
            for part in e.judgement.observables:
                if part.observable.name == name and part.core is not None:
                    shown = shown or part.observable
                    sigmas[label] = binned(part.observable.values, e.sigma, part.core.edges)
                    cores[f"{label}, core"] = part.core
        if shown is not None:
            drawings.append(
                Drawing(
                    across(shown, sigmas, cores, r"$\sigma_\mathrm{tot}/A$"),
                    f"across-{name}",
                    f"Expected error against {shown.symbol}, medians in bins; below, the core of the total pull.",
                    f"σ_tot/A and the core of the total pull against {shown.symbol}, one curve a run.",
                )
            )
    return drawings


def _rows(runs: Sequence[Examination]) -> Iterator[list[object]]:
    pulls = [
        m._replace(label=f"{kind} pull: {m.label}", value=_of_pull(m.value, kind))
        for kind in ("total", "systematic", "statistical")
        for m in PULL
        if kind == "total" or m.label in ("width", "core", "|t| < 1")
    ]
    for m in (*ACCURACY, *pulls, *SCORES):
        if any(m.value(e) is not None for e in runs):
            yield [m.label, *_marked(m, runs), m.target]


def _marked(metric: Metric, runs: Sequence[object]) -> list[object]:
    """Values as text, the best of them marked, unless chance may have made it so."""
    written: list[object] = [metric.written(e) for e in runs]
    known = [(value, metric.error(e) or 0.0, k) for k, e in enumerate(runs) if (value := metric.value(e)) is not None]
    if metric.ideal is None or len(known) < 2:
        return written
    ranked = sorted((metric.distance(value), error, k) for value, error, k in known)
    (first, first_error, winner), (second, second_error, _) = ranked[:2]
    if second - first > 2 * hypot(first_error, second_error) and len({written[k] for _, _, k in known}) > 1:
        written = [p.best(text) if text == written[winner] else text for text in written]
    return written


def _of_pull(
    value: Callable[[PullSummary], float | None], kind: str = "total"
) -> Callable[[Examination], float | None]:
    return lambda e: value(e.judgement.pulls[kind]) if kind in e.judgement.pulls else None


def _each(runs: Sequence[Examination], value: Callable[[Examination], float | None], form: str) -> str:
    return ", ".join(f"{_letter(k)} {number(value(e), form)}" for k, e in enumerate(runs))


def _names(runs: Sequence[Examination]) -> list[str]:
    """'A: runs/a': the letter keeps runs of one name apart."""
    return [f"{_letter(k)}: {e.name}" for k, e in enumerate(runs)]


def _letter(k: int) -> str:
    return chr(ord("A") + k) if k < 26 else f"Z{k - 25}"
