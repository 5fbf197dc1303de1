"""How good a prediction is: accuracy, pulls, coverage, alone and in bins; pure functions of arrays."""

from .accuracy import Accuracy, Bias, accuracy, bias, relative_deviation
from .binned import Binned, Ratio, bin_edges, binned, median, region_ratio
from .calibration import Coverage, calibration_error, coverage, crps, negative_log_likelihood
from .conformal import BinnedReach
from .judgement import Judgement, ObservableJudgement, as_json, judge, pulls_of
from .observables import Observable, observables
from .pulls import PullSummary, pull_stat, pull_syst, pull_tot, summarise_pull
from .residuals import predictability

__all__ = [
    "Accuracy",
    "Bias",
    "Binned",
    "BinnedReach",
    "Coverage",
    "Judgement",
    "Observable",
    "ObservableJudgement",
    "PullSummary",
    "Ratio",
    "accuracy",
    "as_json",
    "bias",
    "bin_edges",
    "binned",
    "calibration_error",
    "coverage",
    "crps",
    "judge",
    "median",
    "negative_log_likelihood",
    "observables",
    "predictability",
    "pull_stat",
    "pull_syst",
    "pull_tot",
    "pulls_of",
    "region_ratio",
    "relative_deviation",
    "summarise_pull",
]
