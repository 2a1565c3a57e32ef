"""What every weight file offers: tensors by name, with shape and dtype known before reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a weight file, under its canonical (Hugging Face) name."""

    shape: tuple[int, ...]
    dtype: str  # as `WeightSource.read` returns it; for packed types the file's own name
    path: Path  # the file that holds it
    stored_as: str  # type in the file, e.g. "BF16" or "Q4_1"
    readable: bool = True  # False: a type that no reader here can turn into floats


class WeightSource(Protocol):
    """An opened and validated set of weight files."""

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Return all tensors by canonical name, in file order."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what was noticed and left aside, e.g. files that no index names."""
        ...

    def read(self, name: str) -> np.ndarray:
        """Return one tensor, a read-only view of the file where the type allows."""
        ...

    def close(self) -> None:
        """Release the files; arrays that are still in use keep their pages alive."""
        ...
