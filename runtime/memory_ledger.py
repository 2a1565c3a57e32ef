"""The memory ledger: what a model needs on a device, in bytes, from plain numbers.

The compiler fills `MemoryFacts` from a configuration and a target, the runtime from a manifest and
engine options; the arithmetic is here, once. Weights, cache, inputs and outputs are exact; rows
marked as estimates (workspace) follow formulas stated where they are computed.

    page                = S tokens of all layers;  pages of a sequence = ceil(tokens / S)
    paged               = the pool's pages, and the null page that padding points at
    contiguous          = max_batch x max_seq_len tokens, whatever the real lengths are
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .dtypes import dtype as dtype_row
from .manifest import OutputBinding
from .number_text import counted
from .om_bindings import resolve
from .packed_batch import BatchLayout, BatchLimits, SourceBinding

EXIT_NO_FIT = 3  # of every command that shows a plan, when the plan does not fit
USABLE_SHARE = 0.9  # of the device's memory; the rest is the driver's and other processes'
_MALLOC_ROUND = 32  # acl.rt.malloc rounds up to 32 bytes and adds 32
_SHAPE_BUFFER_BYTES = 128 * 8  # hidden input of a geared model: 128 int64 dims


@dataclass(frozen=True)
class LedgerRow:
    """One line of the ledger."""

    name: str
    bytes: int
    how: str  # the arithmetic, in words
    estimate: bool = False


@dataclass(frozen=True)
class MemoryFacts:
    """What a ledger is made of; lengths in tokens, memory in bytes."""

    model: str
    target: str
    dtype: str
    weight_dtype: str
    kv_dtype: str
    constants: tuple[LedgerRow, ...]  # "weights" first: what is there whatever is served
    num_layers: int  # L
    num_heads: int  # H
    token_bytes: int  # K and V of one token, all layers
    page_size: int  # S
    max_seq_len: int
    max_batch: int  # sequences served at once
    pages: int  # of the pool, the null page not counted
    limits: BatchLimits  # the largest step, padding to a gear included
    outputs: tuple[OutputBinding, ...]
    mean_len: float  # tokens that a sequence holds on average
    activations_per_token: int = 0  # that live at once in the step's widest place; 0 = not known
    workspace: int | None = None  # as the compiler of the chip wrote it; None = by the formula
    composed: bool = False  # attention in base operators, with the new rows as an output
    bindings: Sequence[SourceBinding] | None = None  # of the inputs; None = every source
    num_gears: int = 0
    parameters: int | None = None
    memory_bytes: int | None = None  # of the device
    memory_source: str = "not given"
    utilisation: float = USABLE_SHARE


@dataclass(frozen=True)
class Capacity:
    """How many sequences fit beside everything else; None when the memory is not known."""

    paged_mean: int | None
    paged_full: int | None
    contiguous: int | None
    mean_len: float


@dataclass(frozen=True)
class MemoryPlan:
    """The whole ledger."""

    model: str
    target: str
    dtype: str
    weight_dtype: str
    kv_dtype: str
    parameters: int | None
    token_bytes: int
    page_bytes: int
    pages: int
    pages_full: int
    fill: float
    contiguous_kv_bytes: int
    rows: tuple[LedgerRow, ...]
    constants: tuple[str, ...]  # names of the rows that are in the model file
    memory_bytes: int | None
    memory_source: str
    usable_bytes: int | None
    capacity: Capacity
    advice: tuple[str, ...] = ()

    def row(self, name: str) -> LedgerRow:
        """Return a ledger line by name; raises KeyError for a name not in the ledger."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    @property
    def total_bytes(self) -> int:
        """Everything that is allocated, with a paged cache."""
        return sum(row.bytes for row in self.rows)

    @property
    def weights_and_paged(self) -> int:
        """Weights and paged cache: what changes with dtype and fill."""
        return self.row("weights").bytes + self.row("KV pages").bytes

    @property
    def weights_and_contiguous(self) -> int:
        """Weights and a contiguous cache of max_batch x max_seq_len tokens."""
        return self.row("weights").bytes + self.contiguous_kv_bytes

    @property
    def headroom_bytes(self) -> int | None:
        """Usable memory that is left over; negative when the plan does not fit."""
        return None if self.usable_bytes is None else self.usable_bytes - self.total_bytes

    @property
    def fits(self) -> bool | None:
        """Whether everything fits; None when the memory is not known."""
        left = self.headroom_bytes
        return None if left is None else left >= 0

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as JSON-ready data, derived numbers included."""
        data = asdict(self)
        for name in (
            "total_bytes",
            "weights_and_paged",
            "weights_and_contiguous",
            "headroom_bytes",
            "fits",
        ):
            data[name] = getattr(self, name)
        return data


def ledger(facts: MemoryFacts) -> MemoryPlan:
    """Return the ledger, without advice."""
    page = facts.token_bytes * facts.page_size
    pages_full = facts.max_batch * pages_of(facts.max_seq_len, facts.page_size)
    fill = facts.pages / pages_full
    kept = f"{counted(facts.pages, 'page')} of {page:,} bytes, {fill:.0%} of full"
    rows = (
        facts.constants[0],
        LedgerRow("KV pages", facts.pages * page, kept),
        LedgerRow("null page", page, "1 page that padding rows point at"),
        *facts.constants[1:],
        _step_inputs(facts),
        _step_outputs(facts),
        _workspace(facts),
    )
    memory = facts.memory_bytes
    usable = None if memory is None else int(memory * facts.utilisation)
    return MemoryPlan(
        model=facts.model,
        target=facts.target,
        dtype=facts.dtype,
        weight_dtype=facts.weight_dtype,
        kv_dtype=facts.kv_dtype,
        parameters=facts.parameters,
        token_bytes=facts.token_bytes,
        page_bytes=page,
        pages=facts.pages,
        pages_full=pages_full,
        fill=fill,
        contiguous_kv_bytes=facts.max_batch * facts.max_seq_len * facts.token_bytes,
        rows=rows,
        constants=tuple(row.name for row in facts.constants),
        memory_bytes=memory,
        memory_source=facts.memory_source,
        usable_bytes=usable,
        capacity=_capacity(facts, usable, rows),
    )


def pages_of(tokens: float, page_size: int) -> int:
    """Return the pages that hold `tokens` tokens of one sequence (rounded up, both times)."""
    return int(-(-tokens // page_size))


def host_memory_bytes() -> int | None:
    """Return the RAM of this machine in bytes, None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _step_inputs(facts: MemoryFacts) -> LedgerRow:
    """The staging buffer of one step; all gears share the buffer of the largest."""
    limits = facts.limits
    size = _allocated(BatchLayout.of(limits, facts.bindings).nbytes)
    how = f"T {limits.max_tokens}, B {limits.max_seqs}, M {limits.table_width}"
    if facts.num_gears:
        size += facts.num_gears * _allocated(_SHAPE_BUFFER_BYTES)
        how += f"; shape buffers of {counted(facts.num_gears, 'gear')}"
    return LedgerRow("step inputs", size, how)


def _step_outputs(facts: MemoryFacts) -> LedgerRow:
    symbols = facts.limits.symbols
    size, told = 0, []
    for each in facts.outputs:
        elements = math.prod(resolve(each.shape, symbols))
        size += _allocated(elements * dtype_row(each.dtype).itemsize)
        told.append(f"{each.role} {each.dtype} [{', '.join(map(str, each.shape))}]")
    return LedgerRow("step outputs", size, ", ".join(told))


def _workspace(facts: MemoryFacts) -> LedgerRow:
    """Activations that live at once, by the widest place of a layer (see the compiler's planner).

    Composed attention also gathers one layer's pages of all sequences and holds the scores of
    every row with all of them in float32.
    """
    if facts.workspace is not None:
        return LedgerRow("workspace", facts.workspace, "as the artefact says", estimate=True)
    tokens = facts.limits.max_tokens
    size = tokens * facts.activations_per_token
    how = f"T {tokens} x {facts.activations_per_token:,} bytes of live activations"
    if not facts.activations_per_token:
        how = "activations are not in the artefact: compile it again to have them counted"
    if facts.composed:
        limits = facts.limits
        columns = limits.max_seqs * (limits.table_width * facts.page_size + tokens)
        gathered = columns * (facts.token_bytes // facts.num_layers)
        size += gathered + tokens * facts.num_heads * columns * 4
        how += (
            f", one layer's pages of all sequences and their float32 scores [T,H,{columns}] "
            "(composed attention)"
        )
    return LedgerRow("workspace", size, how, estimate=True)


def _capacity(facts: MemoryFacts, usable: int | None, rows: tuple[LedgerRow, ...]) -> Capacity:
    if usable is None:
        return Capacity(None, None, None, facts.mean_len)
    left = max(0, usable - sum(row.bytes for row in rows if row.name != "KV pages"))
    pages = left // (facts.token_bytes * facts.page_size)
    return Capacity(
        paged_mean=pages // pages_of(facts.mean_len, facts.page_size),
        paged_full=pages // pages_of(facts.max_seq_len, facts.page_size),
        contiguous=left // (facts.token_bytes * facts.max_seq_len),
        mean_len=facts.mean_len,
    )


def _allocated(size: int) -> int:
    return -(-size // _MALLOC_ROUND) * _MALLOC_ROUND + _MALLOC_ROUND
