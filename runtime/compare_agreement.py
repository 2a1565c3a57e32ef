"""How well two tensors agree, row by row: the numbers of a comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .compare_points import Point

Floats = npt.NDArray[np.float32]

# Relative error of a row that rounding alone does not reach. Measured with the two host executors,
# largest of all operators: float32 7e-6; bfloat16 0.13 in a model of 5 layers and 0.29 in one of 30
# (float16 half of that; openvino computes it in bfloat16). A wrong weight, rotation or page gives
# about 1.
TOLERANCE = {"float32": 2e-3, "float16": 0.5, "bfloat16": 0.5}


@dataclass(frozen=True)
class Where:
    """A row of a step: number of the step, prompt and position of the token."""

    step: int
    prompt: int
    position: int


@dataclass
class Agreement:
    """What was seen at one point over all steps.

    largest: greatest absolute difference. worst: greatest relative error of a row, that is
    |a - b| / |a| in the Euclidean norm (inf where a number is not finite). cosine: least cosine of
    a row. at: row of `worst`; first: first row beyond the tolerance.
    """

    point: Point
    rows: int = 0
    largest: float = 0.0
    worst: float = 0.0
    cosine: float = 1.0
    at: Where | None = None
    first: Where | None = None

    def add(self, a: Floats, b: Floats, places: list[Where], tolerance: float) -> None:
        """Count the rows of one step: a and b are [rows, width]."""
        with np.errstate(all="ignore"):
            difference = a.astype(np.float64) - b
            size_a, size_b = _norm(a), _norm(b)
            error = _norm(difference) / np.where(size_a > 0, size_a, 1.0)
            both = size_a * size_b
            cosine = np.where(both > 0, (a.astype(np.float64) * b).sum(axis=1) / both, size_a == 0)
            cosine = np.where((size_a == 0) & (size_b == 0), 1.0, cosine)
            largest = np.abs(difference).max(axis=1, initial=0.0)
        # A NaN or infinity on one side, or on both: never an agreement.
        bad = ~np.isfinite(error)
        error, cosine = np.where(bad, math.inf, error), np.where(bad, -1.0, cosine)
        largest = np.where(np.isfinite(largest), largest, math.inf)
        if not len(error):
            return
        self.rows += len(error)
        row = int(np.argmax(error))
        if self.at is None or error[row] > self.worst:
            self.worst, self.at = float(error[row]), places[row]
        self.largest = max(self.largest, float(largest.max()))
        self.cosine = min(self.cosine, float(cosine.min()))
        beyond = np.flatnonzero(error > tolerance)
        if self.first is None and beyond.size:
            self.first = places[int(beyond[0])]


@dataclass(frozen=True)
class TokenDifference:
    """The first place where the two sides would go on with different tokens.

    gap: how far the first side's logits hold the two apart; near 0 it is a tie, not a fault.
    """

    where: Where
    first: int
    second: int
    gap: float


def flat_rows(array: npt.NDArray[np.generic], count: int) -> Floats:
    """Return the first `count` rows as float32 [count, width]."""
    rows: Floats = array.reshape(len(array), -1)[:count].astype(np.float32)
    return rows


def _norm(rows: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    norm: npt.NDArray[np.float64] = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1))
    return norm
