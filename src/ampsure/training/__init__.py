"""Finding the weights: engine, optimisers, schedules, checkpoints."""

from .engine import Engine, Progress, TrainingData, TrainingInterrupted
from .soap import SOAP

__all__ = ["SOAP", "Engine", "Progress", "TrainingData", "TrainingInterrupted"]
