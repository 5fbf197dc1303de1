"""The figures and tables of the paper as studies that can be run again, with a verdict on each claim."""

from difflib import get_close_matches

from ampsure.errors import AmpsureError

from . import (
    accuracy_cost,
    accuracy_size,
    bias_binned,
    bias_members,
    bias_remedies,
    bias_table,
    box_smearing,
    ensemble_sigma,
    ensemble_size,
    error_propagation,
    evidential,
    evidential_mixture,
    exam,
    gap_accuracy,
    gap_methods,
    gap_spectrum,
    gap_uncertainty,
    likelihoods,
    mixture_weights,
    peaked_pulls,
    peaked_smearing,
    repulsion,
    true_amplitudes,
)
from .presets import PRESETS, Preset
from .runner import Record, cost, load_record, run_studies, run_study, study_events
from .study import Case, Check, Claim, Estimate, Results, Study, Table, Verdict

__all__ = [
    "PRESETS",
    "STUDIES",
    "Case",
    "Check",
    "Claim",
    "Estimate",
    "Preset",
    "Record",
    "Results",
    "Study",
    "Table",
    "Verdict",
    "cost",
    "get_preset",
    "get_study",
    "load_record",
    "run_studies",
    "run_study",
    "study_events",
]

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        true_amplitudes,
        likelihoods,
        repulsion,
        bias_table,
        bias_members,
        bias_binned,
        ensemble_size,
        ensemble_sigma,
        mixture_weights,
        evidential,
        evidential_mixture,
        box_smearing,
        peaked_smearing,
        peaked_pulls,
        gap_accuracy,
        gap_spectrum,
        gap_uncertainty,
        error_propagation,
        accuracy_cost,
        accuracy_size,
        bias_remedies,
        exam,
        gap_methods,
    )
}
"""All studies, in the order of the paper, then our own."""


def get_study(name: str) -> Study:
    """A study by name."""
    if name not in STUDIES:
        close = get_close_matches(name, STUDIES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(STUDIES)}."
        raise AmpsureError(f"Unknown study {name!r}; {hint}")
    return STUDIES[name]


def get_preset(name: str) -> Preset:
    """A preset by name."""
    if name not in PRESETS:
        raise AmpsureError(f"Unknown preset {name!r}; known are {', '.join(PRESETS)}.")
    return PRESETS[name]
