"""Exact or saturating conversion between the float types of weights."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ..errors import WeightError

_CHUNK = 1 << 22  # elements; bounds the float32 scratch to 16 MiB
_BF16 = np.dtype(ml_dtypes.bfloat16)
_LARGEST = {"float32": 3.4028234663852886e38, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}


@dataclass(frozen=True)
class Saturation:
    """How many values of a tensor did not fit, and the largest of them."""

    count: int
    worst: float


def cast_array(values: np.ndarray, dtype: str, where: str) -> tuple[np.ndarray, Saturation | None]:
    """Return `values` as `dtype` (float32, float16 or bfloat16), rounded to nearest even.

    A value beyond the target's range becomes its largest finite number and is reported; the
    result never holds an infinity. Raises WeightError, naming `where`, for values that are not
    finite to begin with, and for a dtype that is none of the three.
    """
    if dtype not in _LARGEST:
        raise WeightError(
            f"{where}: cannot be cast to {dtype!r}; allowed are {', '.join(_LARGEST)}"
        )
    target = _BF16 if dtype == "bfloat16" else np.dtype(dtype)
    result = np.empty(values.shape, target)
    source, sink = values.reshape(-1), result.reshape(-1)
    count, worst = 0, 0.0
    for start in range(0, source.size, _CHUNK):
        part = widen(source[start : start + _CHUNK])
        _refuse_not_finite(part, start, where)
        limit = part.dtype.type(_LARGEST[dtype])
        largest = part[np.argmax(np.abs(part))] if part.size else 0.0
        if abs(largest) > limit:
            count += int(np.count_nonzero(np.abs(part) > limit))
            worst = max(worst, float(largest), key=abs)
            part = np.clip(part, -limit, limit)
        sink[start : start + _CHUNK] = part.astype(target)
    return result, Saturation(count, worst) if count else None


def widen(values: np.ndarray) -> np.ndarray:
    """Return float values as float32 (float64 stays), exactly."""
    if values.dtype == _BF16:
        # The upper half of a float32, which is faster and more obviously exact than a cast.
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _refuse_not_finite(part: np.ndarray, start: int, where: str) -> None:
    finite = np.isfinite(part)
    if not finite.all():
        index = int(np.argmin(finite))
        raise WeightError(
            f"{where}: element {start + index} is {float(part[index])}; weights must be finite. "
            "The checkpoint is damaged or was overflowed by an earlier conversion"
        )
