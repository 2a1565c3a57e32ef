"""The memory ledger: what a model needs on a device, from its configuration alone.

No weights are read and no device is asked. Weights, cache and inputs are exact; rows marked as
estimates (workspace) follow formulas stated where they are computed.

    KV bytes of a token = 2 (K and V) x L x K x D x itemsize
    page                = S tokens of all layers;  pages of a sequence = ceil(tokens / S)
    contiguous          = max_batch x max_seq_len tokens, whatever the real lengths are
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..models.config import ModelConfig
from ..runtime.dtypes import dtype as dtype_row
from .target_records import Target
from .weight_sizes import QUANTISED, count_weights, weight_bytes

_MALLOC_ROUND = 32  # acl.rt.malloc rounds up to 32 bytes and adds 32
_MASK_BYTES = 2048 * 2048  # compressed causal mask of FusedInferAttentionScore, one byte each
_SHAPE_BUFFER_BYTES = 128 * 8  # hidden input of a geared model: 128 int64 dims


class PlanError(ValueError):
    """A plan was asked for with values that mean nothing; the text names them."""


@dataclass(frozen=True)
class PlanRequest:
    """What to plan for; lengths in tokens, memory in bytes."""

    target: Target
    dtype: str
    page_size: int
    max_seq_len: int
    max_batch: int
    kv_dtype: str | None = None  # None = dtype
    weight_dtype: str | None = None  # None = dtype; "int8" and "int4" are what-ifs
    mean_len: float | None = None  # tokens a sequence holds on average
    fill: float | None = None  # or: share of the full pool that is in use, 0..1
    pages: int | None = None  # or: pages in the pool, the null page not counted
    step_tokens: int = 512  # T, most tokens in one step
    gears: tuple[tuple[int, int], ...] = ()  # (T, B) each
    memory_bytes: int | None = None  # None = the target's
    utilisation: float = 0.9  # share of the device's memory that may be used
    composed: bool | None = None  # attention in base operators; None = as the target has it

    @property
    def is_composed(self) -> bool:
        """Whether attention is built from base operators, with the new rows as an output."""
        if self.composed is not None:
            return self.composed
        return self.target.family.prefill == "composed"

    def __post_init__(self) -> None:
        sizes = ("page_size", "max_seq_len", "max_batch", "step_tokens")
        wrong = [f"{name} {getattr(self, name)}" for name in sizes if getattr(self, name) < 1]
        if wrong:
            raise PlanError(f"{', '.join(wrong)}: must be at least 1")
        given = [name for name in ("mean_len", "fill", "pages") if getattr(self, name) is not None]
        if len(given) > 1:
            raise PlanError(f"{' and '.join(given)} exclude each other: give one of them")
        if self.fill is not None and not 0 < self.fill <= 1:
            raise PlanError(f"fill {self.fill} is not a share: must be above 0, at most 1")
        if self.mean_len is not None and not 0 < self.mean_len <= self.max_seq_len:
            raise PlanError(
                f"mean length {self.mean_len}: must be above 0, at most max_seq_len "
                f"{self.max_seq_len}"
            )
        if not 0 < self.utilisation <= 1:
            raise PlanError(f"utilisation {self.utilisation}: must be above 0, at most 1")


@dataclass(frozen=True)
class LedgerRow:
    """One line of the ledger."""

    name: str
    bytes: int
    how: str  # the arithmetic, in words
    estimate: bool = False


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
    parameters: int
    token_bytes: int
    page_bytes: int
    pages: int
    pages_full: int
    fill: float
    contiguous_kv_bytes: int
    rows: tuple[LedgerRow, ...]
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


def plan_memory(config: ModelConfig, request: PlanRequest) -> MemoryPlan:
    """Return the ledger of a model on a target, with advice when it does not fit.

    Raises PlanError for an unknown dtype name. Takes milliseconds for any size of model.
    """
    from .plan_advice import advice_for  # it plans again, so it imports this module

    plan = ledger(config, request)
    return plan if plan.fits is not False else replace(plan, advice=advice_for(config, request))


def ledger(config: ModelConfig, request: PlanRequest) -> MemoryPlan:
    """Return the ledger without advice."""
    sizes = count_weights(config)
    weight_dtype, kv_dtype = (
        request.weight_dtype or request.dtype,
        request.kv_dtype or request.dtype,
    )
    token = kv_token_bytes(config, _known(kv_dtype))
    page = token * request.page_size
    pages_full = request.max_batch * pages_of(request.max_seq_len, request.page_size)
    pages = _pages(request, pages_full)
    weights = weight_bytes(sizes, _known(weight_dtype), _known(request.dtype))
    kept = "as stored" if weight_dtype not in QUANTISED else f"vectors {request.dtype}, scales fp16"
    fill = pages / pages_full
    rows = (
        LedgerRow("weights", weights, f"{sizes.parameters:,} elements, {weight_dtype} ({kept})"),
        LedgerRow(
            "KV pages", pages * page, f"{pages:,} pages of {page:,} bytes, {fill:.0%} of full"
        ),
        LedgerRow("null page", page, "1 page that padding rows point at"),
        *_constants(config, request),
        *_step_rows(config, request),
        _workspace(config, request, kv_dtype),
    )
    memory, source = _memory(request)
    usable = None if memory is None else int(memory * request.utilisation)
    return MemoryPlan(
        model=config.name,
        target=request.target.name,
        dtype=request.dtype,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        parameters=sizes.parameters,
        token_bytes=token,
        page_bytes=page,
        pages=pages,
        pages_full=pages_full,
        fill=fill,
        contiguous_kv_bytes=request.max_batch * request.max_seq_len * token,
        rows=rows,
        memory_bytes=memory,
        memory_source=source,
        usable_bytes=usable,
        capacity=_capacity(request, usable, rows, token),
    )


def kv_token_bytes(config: ModelConfig, kv_dtype: str) -> int:
    """Return bytes of one token in the cache: K and V of all layers."""
    heads = config.num_kv_heads * config.head_dim
    return 2 * config.num_layers * heads * dtype_row(kv_dtype).itemsize


def pages_of(tokens: float, page_size: int) -> int:
    """Return the pages that hold `tokens` tokens of one sequence (rounded up, both times)."""
    return int(-(-tokens // page_size))


def host_memory_bytes() -> int | None:
    """Return the RAM of this machine in bytes, None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _known(name: str) -> str:
    if name in QUANTISED:
        return name
    try:
        return dtype_row(name).name
    except ValueError as error:
        raise PlanError(f"{error}; weights may also be {' or '.join(QUANTISED)}") from None


def _pages(request: PlanRequest, pages_full: int) -> int:
    if request.pages is not None:
        if request.pages < 1:
            raise PlanError(f"pages {request.pages}: must be at least 1")
        return request.pages
    if request.fill is not None:
        # -6: 0.44 x 100 is 44.000000000000001 in binary and would take a page more
        return max(1, -int(-round(request.fill * pages_full, 6) // 1))
    if request.mean_len is not None:
        return request.max_batch * pages_of(request.mean_len, request.page_size)
    return pages_full


def _memory(request: PlanRequest) -> tuple[int | None, str]:
    if request.memory_bytes is not None:
        return request.memory_bytes, "given"
    if request.target.is_host:
        return host_memory_bytes(), request.target.memory_bytes.source
    return request.target.memory_bytes.value, request.target.memory_bytes.source


def _constants(config: ModelConfig, request: PlanRequest) -> list[LedgerRow]:
    tables = 2 * request.max_seq_len * config.head_dim * 4
    rows = [LedgerRow("rotary tables", tables, "cos and sin, float32 [max_seq_len, D]")]
    if request.target.family.attention is not None and not request.is_composed:
        rows.append(LedgerRow("causal mask", _MASK_BYTES, "constant bool [2048, 2048]"))
    return rows


def _step_rows(config: ModelConfig, request: PlanRequest) -> list[LedgerRow]:
    """Inputs and outputs of one step; all gears share the buffers of the largest."""
    tokens = max([request.step_tokens, *(gear[0] for gear in request.gears)])
    seqs = max([request.max_batch, *(gear[1] for gear in request.gears)])
    width = table_width(request)
    small = (3 * tokens * 4, seqs * width * 4, (seqs + 1) * 4, 2 * seqs * 8, seqs * 4)
    inputs = sum(_allocated(size) for size in small)
    gears = len(request.gears)
    how = f"T {tokens}, B {seqs}, M {width}"
    if gears:
        inputs += gears * _allocated(_SHAPE_BUFFER_BYTES)
        how += f"; shape buffers of {gears} gears"
    outputs = _allocated(seqs * config.vocab_size * 4)
    text = "logits float32 [R, V]"
    if request.is_composed:
        kv_item = dtype_row(request.kv_dtype or request.dtype).itemsize
        outputs += _allocated(2 * config.num_layers * tokens * _kv_width(config) * kv_item)
        text += ", new K and V rows of all layers"
    return [LedgerRow("step inputs", inputs, how), LedgerRow("step outputs", outputs, text)]


def _kv_width(config: ModelConfig) -> int:
    return config.num_kv_heads * config.head_dim


def table_width(request: PlanRequest) -> int:
    """Return M: pages of a full sequence; rows of a fused table are aligned as the target wants."""
    align = 1 if request.is_composed else request.target.family.table_align
    return -(-pages_of(request.max_seq_len, request.page_size) // align) * align


def _allocated(size: int) -> int:
    return -(-size // _MALLOC_ROUND) * _MALLOC_ROUND + _MALLOC_ROUND


def _workspace(config: ModelConfig, request: PlanRequest, kv_dtype: str) -> LedgerRow:
    """Activations that live at once in one layer, by the larger of attention and MLP.

    Attention: residual, normed, q, k, v, out. MLP: residual, normed, gate, up, product. Composed
    attention also gathers one layer's pages of all sequences and holds the scores of every row
    with all of them in float32.
    """
    tokens = max([request.step_tokens, *(gear[0] for gear in request.gears)])
    item = dtype_row(request.dtype).itemsize
    query, hidden = config.num_heads * config.head_dim, config.hidden_size
    attention = 2 * hidden + 2 * query + 2 * _kv_width(config)
    mlp = 2 * hidden + 3 * config.intermediate_size
    size = tokens * max(attention, mlp) * item
    how = f"T {tokens} x {max(attention, mlp)} live elements"
    if request.is_composed:
        seqs = max([request.max_batch, *(gear[1] for gear in request.gears)])
        columns = seqs * (table_width(request) * request.page_size + tokens)
        gathered = 2 * columns * _kv_width(config) * dtype_row(kv_dtype).itemsize
        scores = tokens * config.num_heads * columns * 4
        size += gathered + scores
        how += (
            f", one layer's pages of all sequences and their float32 scores [T,H,{columns}] "
            "(composed attention)"
        )
    return LedgerRow("workspace", size, how, estimate=True)


def _capacity(
    request: PlanRequest, usable: int | None, rows: tuple[LedgerRow, ...], token: int
) -> Capacity:
    mean = _mean_len(request)
    if usable is None:
        return Capacity(None, None, None, mean)
    left = max(0, usable - sum(row.bytes for row in rows if row.name != "KV pages"))
    pages = left // (token * request.page_size)
    return Capacity(
        paged_mean=pages // pages_of(mean, request.page_size),
        paged_full=pages // pages_of(request.max_seq_len, request.page_size),
        contiguous=left // (token * request.max_seq_len),
        mean_len=mean,
    )


def _mean_len(request: PlanRequest) -> float:
    if request.mean_len is not None:
        return request.mean_len
    if request.fill is not None:
        return request.fill * request.max_seq_len
    return request.max_seq_len / 2
