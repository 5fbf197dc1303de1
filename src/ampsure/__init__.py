"""ampsure: amplitude surrogates you can be sure of."""

from ampsure._version import __version__
from ampsure.errors import AmpsureError, InvalidEventsError
from ampsure.events import Events
from ampsure.generation import generate
from ampsure.io import load, save, stream
from ampsure.processes import Process, get_process, list_processes, register_process

__all__ = [
    "AmpsureError",
    "Events",
    "InvalidEventsError",
    "Process",
    "__version__",
    "generate",
    "get_process",
    "list_processes",
    "load",
    "register_process",
    "save",
    "stream",
]
