"""Scattering processes: legs, masses, and exact amplitudes where they are known."""

from . import gg_yyg
from .process import Process, get_process, list_processes, register_process

__all__ = ["Process", "get_process", "gg_yyg", "list_processes", "register_process"]
