"""Random numbers as a pure function of (seed, position): no generator, no state to lose.

The number for a token depends on its request's seed and on its place in the sequence alone. So the
row a request sits in, its neighbours, and a preemption with recomputation cannot change it.

The function is the SplitMix64 output stage (G. Steele, D. Lea, C. Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014; finaliser constants of D. Stafford, variant 13): the
seed is mixed once to a starting state, the state is advanced by position times the golden-ratio
increment, and the result is mixed again.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MUL_1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_MASK = (1 << 64) - 1


def mix64(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble each 64-bit word, one to one; every input bit reaches every output bit."""
    value = (value ^ (value >> _S30)) * _MUL_1
    value = (value ^ (value >> _S27)) * _MUL_2
    mixed: npt.NDArray[np.uint64] = value ^ (value >> _S31)
    return mixed


def uniform(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1) with 53 random bits, one for each (seed, position) pair.

    seeds, positions: arrays of one shape; a position is a token's index in its sequence.
    """
    steps = positions.astype(np.uint64) + np.uint64(1)
    words = mix64(mix64(seeds + _GOLDEN) + steps * _GOLDEN)
    draws: npt.NDArray[np.float64] = (words >> _S11).astype(np.float64) * 2.0**-53
    return draws


def request_seed(seed: int | None, choice: int = 0) -> int:
    """Return the 64-bit seed of one choice of a request; None draws it from the system's entropy.

    choice: index among the n answers of one request, so that they differ under one seed; choice 0
    uses the seed itself.
    """
    base = int.from_bytes(os.urandom(8), "little") if seed is None else seed & _MASK
    if choice == 0:
        return base
    word = np.array([base ^ (choice * 0xD1342543DE82EF95 & _MASK)], dtype=np.uint64)
    return int(mix64(word)[0])
