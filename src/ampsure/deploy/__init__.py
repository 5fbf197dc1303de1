"""Surrogates for other programs: ONNX."""

from .onnx import export_onnx

__all__ = ["export_onnx"]
