"""The command's name for what compiler and runtime share."""

from __future__ import annotations

from ..runtime.interruption import Interruption

__all__ = ["Interruption"]
