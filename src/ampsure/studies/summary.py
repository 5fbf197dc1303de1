"""All results of studies on one page, as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from ampsure._version import __version__
from ampsure.errors import AmpsureError
from ampsure.io.checks import reading
from ampsure.report import page as p

from . import STUDIES
from .runner import Record, load_record
from .study import Verdict

__all__ = ["load_records", "markdown_report", "studies_report", "using"]

_KINDS: dict[str, p.Kind] = {"confirmed": "good", "refuted": "bad", "inconclusive": "warn"}


def load_records(folder: Path, preset: str) -> list[Record]:
    """All studies at a preset that are finished, in the order of the paper."""
    paths = {name: folder / f"{name}-{preset}.json" for name in STUDIES}
    found = (load_record(STUDIES[name], path) for name, path in paths.items() if path.exists())
    records = [record for record in found if record is not None]
    if not records:
        raise AmpsureError(
            f"There are no finished studies at preset {preset!r} in {folder}: run `ampsure study run` first."
        )
    return records


def using(record: Record) -> AbstractContextManager[None]:
    """Turn what goes wrong with results that are not what a study measures into a sentence."""
    return reading(Path(f"{record.study}-{record.preset}.json"), "results of a study")


def markdown_report(records: Sequence[Record]) -> str:
    """All claims, one row each, then study by study what was run, its numbers, and its figure from a file beside."""
    claims = [
        (
            f"{verdict.claim}: {verdict.text}",
            f"`{STUDIES[record.study].label}`",
            f"**{verdict.outcome}**",
            "<br>".join(str(check) for check in verdict.checks),
        )
        for record in records
        for verdict in record.verdicts
    ]
    blocks = [_markdown_table(("claim", "in the paper", "verdict", "measured"), claims)]
    for record in records:
        study = STUDIES[record.study]
        with using(record):
            blocks += [f"## {study.title}", f"`{study.name}`, {study.label}. {_run_in_words(record)}"]
            for table in study.tables(record.results):
                blocks += [f"{table.title}:"] if table.title else []
                blocks.append(_markdown_table(table.header, table.rows))
        blocks.append(f"![{study.title}]({study.name}-{record.preset}.png)")
    return "\n\n".join(blocks) + "\n"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def studies_report(records: Sequence[Record]) -> str:
    """The page: all claims first, then study by study what was run, its figure and its numbers."""
    verdicts = [(record, verdict) for record in records for verdict in record.verdicts]
    counts = [sum(v.outcome == outcome for _, v in verdicts) for outcome in _KINDS]
    rows = [
        [verdict.claim, _badge(verdict), p.join(p.formula(verdict.text), p.Html("<br>"), STUDIES[record.study].label)]
        for record, verdict in verdicts
    ]
    words = ", ".join(f"{count} {outcome}" for count, outcome in zip(counts, _KINDS, strict=True))
    blocks = [p.section("Claims", p.table(rows))]
    for record in records:
        with using(record):
            blocks.append(_study(record))
    subtitle = f"Preset {records[0].preset}: {len(verdicts)} claims, {words}"
    return p.page("The paper, measured again", blocks, subtitle=subtitle, footer=f"Made by ampsure {__version__}.")


def _study(record: Record) -> p.Html:
    study = STUDIES[record.study]
    figure = study.figure(record.results)
    drawn = p.figure(figure, study.name, study.title, f"{study.title} ({study.label}).")
    if figure.get_figwidth() < 6:  # one panel does not need the width of a page
        drawn = p.figures(drawn)
    tables = []
    for table in study.tables(record.results):
        tables += [p.paragraph(table.title)] if table.title else []
        tables.append(p.table(table.rows, table.header))
    judged = [
        p.join(
            p.verdict(_badge(verdict), [p.formula(f"{verdict.claim}: {verdict.text}")], _KINDS[verdict.outcome]),
            p.table(
                [[p.formula(c.quantity), c.measured, c.claimed, c.outcome] for c in verdict.checks],
                ["", "measured", "in the paper", ""],
            ),
        )
        for verdict in record.verdicts
    ]
    return p.section(study.title, p.paragraph(_run_in_words(record)), *judged, *tables, drawn)


def _run_in_words(record: Record) -> str:
    """What was really run, which may be less than the paper did."""
    trained = [case["trained"] for case in record.results.cases]
    if not trained:
        return "No training."

    def all_of(name: str) -> str:
        return ", ".join(dict.fromkeys(str(t[name]) for t in trained))

    networks = ", ".join(dict.fromkeys("x".join(map(str, t["hidden"])) for t in trained))
    return (
        f"{len(trained)} trainings of networks {networks}, {all_of('epochs')} epochs, {all_of('events')} training "
        f"events, {all_of('precision')}, on {all_of('device')}; {sum(t['seconds'] for t in trained):,.0f} s in all."
    )


def _badge(verdict: Verdict) -> p.Html:
    return p.badge(verdict.outcome, _KINDS[verdict.outcome])
