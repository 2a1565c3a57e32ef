"""What the translation to GE-IR refuses."""

from __future__ import annotations


class GeImportError(Exception):
    """An ONNX node for which there is no GE form."""
