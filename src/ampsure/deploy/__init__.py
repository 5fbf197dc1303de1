"""A surrogate outside of Python: C++ source and a shared library with the UMAMI interface of MadGraph 7."""

from .umami import Library, export_umami

__all__ = ["Library", "export_umami"]
