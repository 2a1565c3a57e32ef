"""The decoder run in torch, as a reference for an artefact: the same batch, the same pages.

    prompts ── step 0: all of them packed ──> logits of each last token
            ── step 1: one more token each ─> logits again, now read through the pages

On "cpu" the operators are the numpy oracles; on "npu" they are torch_npu's (never run on a device
by us). The artefact runs the same two steps through ACL, and the rows of logits are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ..graph_ops.bodies import TORCH_TYPES, to_numpy, to_torch
from ..graph_ops.npu import npu_operators
from ..models.checkpoint import Checkpoint
from ..models.decoder import Decoder
from ..models.rope import cos_sin
from ..runtime.acl.opening import open_acl
from ..runtime.acl.options import AclOptions
from ..runtime.artifact import Artifact
from ..runtime.artifact_backend import ArtifactBackend
from ..runtime.compare import made_up_prompts
from ..runtime.compare_agreement import TOLERANCE, Agreement, Where
from ..runtime.compare_points import BEHIND, Point
from ..runtime.manifest import Manifest
from ..runtime.packed_batch import BatchLayout, BatchLimits, PackedBatch
from ..runtime.page_pool import pages_for

DEVICES = ("cpu", "npu")


@dataclass(frozen=True)
class ReferenceStep:
    """One packed step as plain arrays; the names and shapes of the graph's inputs."""

    inputs: dict[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.inputs[name]

    @property
    def order(self) -> tuple[str, ...]:
        """The decoder's arguments, in order."""
        return (
            "input_ids",
            "positions",
            "slot_mapping",
            "block_table",
            "cu_seqlens",
            "kv_lens",
            "logits_rows",
        )


@dataclass(frozen=True)
class ReferenceBatch:
    """Prompts that get pages of their own, in an order that no contiguous cache would have."""

    prompts: Sequence[np.ndarray]
    page_size: int
    table_width: int
    num_pages: int = field(init=False)

    def __post_init__(self) -> None:
        pages = sum(self._pages_of(prompt) for prompt in self.prompts)
        object.__setattr__(self, "num_pages", pages + 1)

    def prefill(self) -> ReferenceStep:
        """Return the step that computes every prompt."""
        return self._step([(prompt, 0) for prompt in self.prompts])

    def decode(self, tokens: np.ndarray) -> ReferenceStep:
        """Return the step that computes one more token of each: int32 [B]."""
        return self._step(
            [(tokens[b : b + 1], len(prompt)) for b, prompt in enumerate(self.prompts)]
        )

    def _pages_of(self, prompt: np.ndarray) -> int:
        return pages_for(len(prompt) + 1, self.page_size)

    def _table(self) -> np.ndarray:
        """Pages from the last to the first, one sequence after the other: int32 [B, M]."""
        table = np.zeros((len(self.prompts), self.table_width), np.int32)
        page = self.num_pages - 1
        for row, prompt in zip(table, self.prompts):
            count = self._pages_of(prompt)
            row[:count] = np.arange(page, page - count, -1)
            page -= count
        return table

    def _step(self, parts: Sequence[tuple[np.ndarray, int]]) -> ReferenceStep:
        table = self._table()
        lengths = np.array([len(tokens) for tokens, _ in parts])
        starts = np.array([start for _, start in parts])
        cu = np.concatenate([[0], np.cumsum(lengths)])
        places = [start + np.arange(n) for n, start in zip(lengths, starts)]
        slots = [
            row[at // self.page_size] * self.page_size + at % self.page_size
            for row, at in zip(table, places)
        ]
        arrays = {
            "input_ids": np.concatenate([tokens for tokens, _ in parts]),
            "positions": np.concatenate(places),
            "slot_mapping": np.concatenate(slots),
            "block_table": table,
            "cu_seqlens": cu,
            "seq_ends": cu[1:],
            "kv_lens": starts + lengths,
            "logits_rows": cu[1:] - 1,
        }
        return ReferenceStep({name: array.astype(np.int32) for name, array in arrays.items()})


class Reference:
    """The decoder with its weights and pages on a device."""

    def __init__(self, checkpoint: Checkpoint, dtype: str, max_seq_len: int, device: str) -> None:
        """Load every weight; raises ValueError for an unknown device or dtype."""
        if device not in DEVICES:
            raise ValueError(f"device is {device!r}: allowed are {', '.join(DEVICES)}")
        self._config, self._kind = checkpoint.config, TORCH_TYPES[dtype]
        self._device = torch.device(device)
        with torch.device("meta"):
            self._decoder = Decoder(checkpoint.config, max_seq_len, self._kind)
        tables = dict(
            zip(("rope.cos.weight", "rope.sin.weight"), cos_sin(self._config.rope, max_seq_len))
        )
        for name, parameter in list(self._decoder.named_parameters()):
            array = tables[name] if name in tables else checkpoint.cast(name, dtype)
            if array.shape != tuple(parameter.shape):
                raise ValueError(f"{name} has shape {array.shape}, not {tuple(parameter.shape)}")
            owner, _, leaf = name.rpartition(".")
            value = to_torch(np.array(array)).to(self._device)
            setattr(
                self._decoder.get_submodule(owner),
                leaf,
                torch.nn.Parameter(value, requires_grad=False),
            )
        self._caches: list[list[torch.Tensor]] = []

    def run(self, step: ReferenceStep, batch: ReferenceBatch) -> np.ndarray:
        """Return float32 logits [R, V]; the pages keep what the step wrote."""
        if not self._caches:
            config = self._config
            shape = (batch.num_pages, batch.page_size, config.num_kv_heads, config.head_dim)
            self._caches = [
                [
                    torch.zeros(shape, dtype=self._kind, device=self._device)
                    for _ in range(config.num_layers)
                ]
                for _ in range(2)
            ]
        inputs = [to_torch(step[name]).to(self._device) for name in step.order]
        with torch.inference_mode():
            logits, keys, values = self._decoder(*inputs, *self._caches)
        self._caches = [keys, values]
        return to_numpy(logits.cpu())


def reference_logits(
    checkpoint: Checkpoint,
    batch: ReferenceBatch,
    device: str = "cpu",
    dtype: str = "float32",
    max_seq_len: int = 2048,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of both steps, float32 [B,V] each; step 1 goes on with the likeliest token.

    Raises NpuOperatorError for "npu" without torch_npu, or with a dtype or page size that its
    attention does not take; WeightError.
    """
    with _operators(device):
        model = Reference(checkpoint, dtype, max_seq_len, device)
        first = model.run(batch.prefill(), batch)
        return first, model.run(batch.decode(first.argmax(axis=1)), batch)


@contextmanager
def _operators(device: str) -> Iterator[None]:
    with npu_operators() if device == "npu" else nullcontext():
        yield


def artifact_logits(
    folder: Path, batch: ReferenceBatch, tokens: np.ndarray, executor: str = "openvino"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of both steps as the artefact computes them; `tokens` [B] are step 1's."""
    artifact = Artifact.open(folder)
    host = artifact.manifest.target == "host"
    acl = open_acl("host" if host else "cann", AclOptions(executor=executor))
    backend = ArtifactBackend(artifact, acl)
    facts = backend.geometry
    longest = max(sum(len(prompt) for prompt in batch.prompts), facts.gear_tokens)
    limits = BatchLimits(
        longest, max(len(batch.prompts), facts.gear_seqs), facts.table_width, batch.page_size
    )
    try:
        packed = backend.open(
            facts.num_pages or batch.num_pages, BatchLayout.of(limits, facts.bindings)
        )
        results = []
        for step in (batch.prefill(), batch.decode(tokens)):
            _fill(packed, step)
            backend.launch(packed)
            rows = np.arange(len(batch.prompts), dtype=np.intp)
            results.append(backend.wait().logits(rows).copy())
        return results[0], results[1]
    finally:
        backend.close()


def _fill(packed: PackedBatch, step: ReferenceStep) -> None:
    packed.num_tokens, packed.num_seqs = len(step["input_ids"]), len(step["kv_lens"])
    packed.num_logits = len(step["logits_rows"])
    for source in packed.sources:
        packed.view(source)[...] = step[source]
    packed.table()[...] = step["block_table"]


@dataclass(frozen=True)
class ReferenceReport:
    """How an artefact's logits agree with the decoder run in torch on `device`."""

    device: str
    tolerance: float
    agreement: Agreement
    same_tokens: int

    @property
    def agrees(self) -> bool:
        """Whether every row is within the tolerance."""
        return self.agreement.worst <= self.tolerance

    def to_json(self) -> dict[str, object]:
        """Return the figures as plain values."""
        each = self.agreement
        return {
            "device": self.device,
            "agrees": self.agrees,
            "rows": each.rows,
            "relative_error": each.worst if math.isfinite(each.worst) else str(each.worst),
            "least_cosine": each.cosine,
            "same_tokens": self.same_tokens,
            "tolerance": self.tolerance,
        }

    @property
    def text(self) -> str:
        """One line for people."""
        each = self.agreement
        verdict = "agrees with" if self.agrees else "DIFFERS from"
        return (
            f"the artefact {verdict} torch on {self.device}: {each.rows} rows of logits, worst "
            f"error {each.worst:.1e} (tolerance {self.tolerance:g}), least cosine "
            f"{each.cosine:.6f}, {self.same_tokens} of {each.rows} next tokens the same"
        )


def check_against_reference(
    checkpoint: Checkpoint, folder: Path, device: str = "cpu", executor: str = "openvino"
) -> ReferenceReport:
    """Run prompts of several lengths through both; raises what either of them raises."""
    manifest = Artifact.open(folder).manifest
    prompts = _prompts(manifest)
    batch = ReferenceBatch(prompts, manifest.page_size, manifest.table_width)
    wanted = reference_logits(checkpoint, batch, device, manifest.dtype, manifest.max_seq_len)
    found = artifact_logits(folder, batch, wanted[0].argmax(axis=1), executor)
    agreement = Agreement(Point("logits", "output", BEHIND, "", 0, "float32", True))
    tolerance = TOLERANCE[manifest.dtype]
    same = 0
    for number, (a, b) in enumerate(zip(wanted, found)):  # the steps
        places = [Where(number, row, len(prompt)) for row, prompt in enumerate(prompts)]
        agreement.add(a, b, places, tolerance)
        same += int((a.argmax(axis=1) == b.argmax(axis=1)).sum())
    return ReferenceReport(device, tolerance, agreement, same)


def _prompts(manifest: Manifest) -> list[np.ndarray]:
    """Return made-up prompts whose prefill is one step of the artefact."""
    most, longest = manifest.max_batch, manifest.max_seq_len - 1
    if manifest.gears:  # it has to fit into the largest gear, with a row for padding tokens
        gear = max(manifest.gears, key=lambda each: each["T"])
        most = min(most, max(1, gear["B"] - 1))
        longest = min(longest, gear["T"] // most)
    prompts = made_up_prompts(manifest.model.vocab_size, manifest.page_size, longest)
    return list(prompts[:most])
