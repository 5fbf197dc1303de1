"""Surrogates in other programs, and at work: gated amplitudes, unweighting, weights, histograms, distillation."""

from .amplitudes import ExternalProgram, SharedLibrary, UmamiLibrary
from .distill import distill
from .gated import GateCounts, GatedAmplitude, GateLog
from .histograms import UncertainHistogram, histogram, save_histogram
from .onnx import export_onnx
from .reweight import Reweighting, member_amplitudes, reweight, surrogate_weights
from .two_stage import TwoStageSummary, adapted_sampler, learned_maximum, two_stage
from .umami import Library, export_umami

__all__ = [
    "ExternalProgram",
    "GateCounts",
    "GateLog",
    "GatedAmplitude",
    "Library",
    "Reweighting",
    "SharedLibrary",
    "TwoStageSummary",
    "UmamiLibrary",
    "UncertainHistogram",
    "adapted_sampler",
    "distill",
    "export_onnx",
    "export_umami",
    "histogram",
    "learned_maximum",
    "member_amplitudes",
    "reweight",
    "save_histogram",
    "surrogate_weights",
    "two_stage",
]
