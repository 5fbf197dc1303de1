"""The version of ampsure and of what it runs on, as files record them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__", "versions"]

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """Versions that may change a result."""
    found = {"ampsure": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "madspace"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
