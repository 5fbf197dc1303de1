"""Events of processes with a known exact amplitude: densities, cuts, phase space, adaptive sampling, unweighting."""

from .densities import EMBEDDED, get_density
from .generate import GenerationSummary, generate
from .settings import PRESETS, Cuts, Settings, get_settings

__all__ = ["EMBEDDED", "PRESETS", "Cuts", "GenerationSummary", "Settings", "generate", "get_density", "get_settings"]
