"""ampsure: amplitude surrogates you can be sure of."""

from ampsure._version import __version__
from ampsure.audit import Audit, audit
from ampsure.errors import AmpsureError, InvalidEventsError
from ampsure.events import Events
from ampsure.fitting import fit, fit_many
from ampsure.generation import generate
from ampsure.io import load, save, stream
from ampsure.prediction import Prediction
from ampsure.preprocessing import register_features
from ampsure.processes import Process, get_process, list_processes, register_process
from ampsure.surrogate import Surrogate, load_surrogate

__all__ = [
    "AmpsureError",
    "Audit",
    "Events",
    "InvalidEventsError",
    "Prediction",
    "Process",
    "Surrogate",
    "__version__",
    "audit",
    "fit",
    "fit_many",
    "generate",
    "get_process",
    "list_processes",
    "load",
    "load_surrogate",
    "register_features",
    "register_process",
    "save",
    "stream",
]
