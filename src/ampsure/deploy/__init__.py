"""Surrogates at work: gated amplitudes, two-stage unweighting, weights of events, smaller networks."""

from .amplitudes import ExternalProgram, SharedLibrary, UmamiLibrary
from .gated import GateCounts, GatedAmplitude, GateLog

__all__ = ["ExternalProgram", "GateCounts", "GateLog", "GatedAmplitude", "SharedLibrary", "UmamiLibrary"]
