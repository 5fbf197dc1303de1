"""Surrogates at work: gated amplitudes, two-stage unweighting, weights of events, smaller networks."""

from .amplitudes import ExternalProgram, SharedLibrary, UmamiLibrary
from .gated import GateCounts, GatedAmplitude, GateLog
from .two_stage import TwoStageSummary, adapted_sampler, learned_maximum, two_stage

__all__ = [
    "ExternalProgram",
    "GateCounts",
    "GateLog",
    "GatedAmplitude",
    "SharedLibrary",
    "TwoStageSummary",
    "UmamiLibrary",
    "adapted_sampler",
    "learned_maximum",
    "two_stage",
]
