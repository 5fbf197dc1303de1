"""Figures and pages; numbers come from elsewhere."""

from .comparison import comparison_drawings, comparison_report
from .examination import Examination, examine
from .figures import event_overview
from .style import Drawing, save_figure
from .surrogate import surrogate_drawings, surrogate_report

__all__ = [
    "Drawing",
    "Examination",
    "comparison_drawings",
    "comparison_report",
    "event_overview",
    "examine",
    "save_figure",
    "surrogate_drawings",
    "surrogate_report",
]
