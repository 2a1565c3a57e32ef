"""Model names: a local path, or a built-in demo that is fetched once and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .errors import CatalogError

Progress = Callable[[str, int, int], None]  # (stage, bytes done, bytes in all)


def locate(path_or_name: str | Path, progress: Progress | None = None) -> Path:
    """Return the local path."""
    path = Path(path_or_name)
    if path.exists():
        return path
    raise CatalogError(f"{path_or_name}: no such file")
