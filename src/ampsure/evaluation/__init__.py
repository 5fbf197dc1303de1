"""How good a prediction is: accuracy, pulls, coverage; pure functions of arrays."""

from .accuracy import Accuracy, accuracy, relative_deviation
from .pulls import PullSummary, coverage, pull_stat, pull_syst, pull_tot, summarise_pull

__all__ = [
    "Accuracy",
    "PullSummary",
    "accuracy",
    "coverage",
    "pull_stat",
    "pull_syst",
    "pull_tot",
    "relative_deviation",
    "summarise_pull",
]
