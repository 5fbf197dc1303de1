"""Finding the weights: engine, optimisers, schedules, checkpoints."""

from .adam import Adam
from .engine import Engine, Progress, Training, TrainingData, TrainingInterrupted, enough_memory
from .soap import SOAP

__all__ = ["SOAP", "Adam", "Engine", "Progress", "Training", "TrainingData", "TrainingInterrupted", "enough_memory"]
