"""Stacked networks: every parameter has a leading member axis, so one network, an ensemble and samples are one code."""

from .mlp import ACTIVATIONS, StackedMLP

__all__ = ["ACTIVATIONS", "StackedMLP"]
