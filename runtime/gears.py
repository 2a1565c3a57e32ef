"""Gears: the fixed shapes an NPU model was compiled for, and padding a step up to one.

    step     t tokens of b sequences
    gear     T tokens, B sequences, R rows of logits

The T - t padding tokens belong to one dummy sequence on the null page, which takes a row of the
table; rows that are still left are empty sequences. So a gear fits when t == T and b <= B, or
t < T and b < B (the rule of `compiler.gear_planner`). Padding writes nothing (slot -1), and its
results are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .packed_batch import PackedBatch


class GearError(ValueError):
    """A step that no gear of the artefact holds."""


@dataclass(frozen=True)
class Gear:
    """One shape: T, B and R."""

    tokens: int
    seqs: int
    logits: int

    def holds(self, tokens: int, seqs: int, logits: int) -> bool:
        """Whether a step of so many tokens, sequences and rows of logits can be padded to this."""
        spare = self.seqs - seqs
        enough = tokens == self.tokens or (tokens < self.tokens and spare > 0)
        return enough and spare >= 0 and logits <= self.logits


class Gears:
    """The gears of an artefact; none means that every shape is allowed."""

    def __init__(self, gears: Sequence[Mapping[str, int]]) -> None:
        """Read the manifest's gears: symbol -> extent."""
        read = [Gear(gear["T"], gear["B"], gear.get("R", gear["B"])) for gear in gears]
        self._gears = sorted(read, key=lambda gear: (gear.tokens, gear.seqs))

    @property
    def max_tokens(self) -> int:
        """T of the largest gear, 0 without gears."""
        return max((gear.tokens for gear in self._gears), default=0)

    @property
    def max_seqs(self) -> int:
        """B of the widest gear, 0 without gears."""
        return max((gear.seqs for gear in self._gears), default=0)

    def choose(self, tokens: int, seqs: int, logits: int) -> Gear | None:
        """Return the smallest gear that holds a step, None where none does."""
        return next((gear for gear in self._gears if gear.holds(tokens, seqs, logits)), None)

    def pad(self, batch: PackedBatch) -> None:
        """Pad the step in `batch` to the smallest gear that holds it; raises GearError."""
        if not self._gears:
            return
        gear = self.choose(batch.num_tokens, batch.num_seqs, batch.num_logits)
        if gear is not None:
            batch.pad(gear.tokens, gear.seqs, gear.logits)
            return
        known = ", ".join(f"(T={gear.tokens}, B={gear.seqs})" for gear in self._gears)
        raise GearError(
            f"no gear holds a step of {batch.num_tokens} tokens of {batch.num_seqs} sequences: "
            f"the artefact has {known}; lower max_batch_tokens or max_batch, or compile with a "
            "larger gear"
        )
