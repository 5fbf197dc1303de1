"""Finding the weights: engine, optimisers, schedules, checkpoints."""

from .adam import Adam
from .engine import Engine, Progress, Training, TrainingData, TrainingInterrupted
from .soap import SOAP

__all__ = ["SOAP", "Adam", "Engine", "Progress", "Training", "TrainingData", "TrainingInterrupted"]
