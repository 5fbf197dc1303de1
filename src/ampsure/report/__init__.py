"""Figures and pages; numbers come from elsewhere."""

from .figures import event_overview

__all__ = ["event_overview"]
