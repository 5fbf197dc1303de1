"""How the weights are distributed: one network, an ensemble with or without repulsion, or a Gaussian over weights."""

from .base import Point, Posterior
from .ensemble import Ensemble, inverse_variance_mean, repulsion
from .laplace import laplace_covariance, neighbours, variance_of_neighbours
from .variational import Variational

__all__ = [
    "Ensemble",
    "Point",
    "Posterior",
    "Variational",
    "inverse_variance_mean",
    "laplace_covariance",
    "neighbours",
    "repulsion",
    "variance_of_neighbours",
]
