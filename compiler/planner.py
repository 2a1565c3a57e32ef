"""The compiler's side of the memory ledger: a configuration and a target as its plain numbers.

No weights are read and no device is asked; `runtime.memory_ledger` does the arithmetic.

    KV bytes of a token = 2 (K and V) x L x K x D x itemsize
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..models.config import ModelConfig
from ..runtime import memory_ledger
from ..runtime.dtypes import dtype as dtype_row
from ..runtime.manifest import OutputBinding
from ..runtime.memory_ledger import (
    USABLE_SHARE,
    LedgerRow,
    MemoryFacts,
    MemoryPlan,
    host_memory_bytes,
    pages_of,
)
from ..runtime.packed_batch import BatchLimits
from .attention_form import COMPOSED, attention_form
from .step_sources import step_bindings
from .target_records import Target
from .weight_sizes import QUANTISED, count_weights, weight_bytes

STEP_TOKENS = 512  # of the largest step, where nothing says it
_MASKED_OPERATOR = "FusedInferAttentionScore"
_MASK_BYTES = 2048 * 2048  # its compressed causal mask, one byte each


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
    pages: int | None = None  # in the pool, the null page not counted; None = as mean_len has it
    fill: float | None = None  # or, in place of both: share of the full pool in use, 0..1
    step_tokens: int = STEP_TOKENS  # T, most tokens in one step
    gears: tuple[tuple[int, int], ...] = ()  # (T, B) each
    memory_bytes: int | None = None  # None = the target's
    utilisation: float = USABLE_SHARE  # share of the device's memory that may be used
    composed: bool | None = None  # attention in base operators; None = as the target has it

    @property
    def is_composed(self) -> bool:
        """Whether attention is built from base operators, with the new rows as an output."""
        if self.composed is not None:
            return self.composed
        return self.target.family.prefill == "composed"

    @property
    def form(self) -> str:
        """Which form attention takes: fused, tokens or composed."""
        return COMPOSED if self.is_composed else attention_form(self.target)

    def __post_init__(self) -> None:
        sizes = ("page_size", "max_seq_len", "max_batch", "step_tokens")
        wrong = [f"{name} {getattr(self, name)}" for name in sizes if getattr(self, name) < 1]
        if wrong:
            raise PlanError(f"{', '.join(wrong)}: must be at least 1")
        given = [name for name in ("fill", "mean_len", "pages") if getattr(self, name) is not None]
        if self.fill is not None and len(given) > 1:
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


def plan_memory(config: ModelConfig, request: PlanRequest) -> MemoryPlan:
    """Return the ledger of a model on a target, with advice when it does not fit.

    Raises PlanError for an unknown dtype name. Takes milliseconds for any size of model.
    """
    from .plan_advice import advice_for  # it plans again, so it imports this module

    plan = ledger(config, request)
    return plan if plan.fits is not False else replace(plan, advice=advice_for(config, request))


def ledger(config: ModelConfig, request: PlanRequest) -> MemoryPlan:
    """Return the ledger without advice."""
    return memory_ledger.ledger(memory_facts(config, request))


def memory_facts(config: ModelConfig, request: PlanRequest) -> MemoryFacts:
    """Return the numbers that the ledger is made of."""
    weight_dtype = _known(request.weight_dtype or request.dtype)
    kv_dtype = _known(request.kv_dtype or request.dtype)
    tokens, seqs = _largest_step(request)
    pages_full = request.max_batch * pages_of(request.max_seq_len, request.page_size)
    width = request.target.table_width(request.max_seq_len, request.page_size, request.is_composed)
    memory, source = _memory(request)
    return MemoryFacts(
        model=config.name,
        target=request.target.name,
        dtype=request.dtype,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        constants=_constants(config, request, weight_dtype),
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        token_bytes=kv_token_bytes(config, kv_dtype),
        page_size=request.page_size,
        max_seq_len=request.max_seq_len,
        max_batch=request.max_batch,
        pages=_pages(request, pages_full),
        limits=BatchLimits(tokens, seqs, width, request.page_size),
        outputs=_outputs(config, kv_dtype, request.is_composed),
        mean_len=_mean_len(request),
        activations_per_token=activation_bytes(config, request.dtype),
        composed=request.is_composed,
        bindings=step_bindings(request.form),
        num_gears=len(request.gears),
        parameters=count_weights(config).parameters,
        memory_bytes=memory,
        memory_source=source,
        utilisation=request.utilisation,
    )


def kv_token_bytes(config: ModelConfig, kv_dtype: str) -> int:
    """Return bytes of one token in the cache: K and V of all layers."""
    heads = config.num_kv_heads * config.head_dim
    return 2 * config.num_layers * heads * dtype_row(kv_dtype).itemsize


def activation_bytes(config: ModelConfig, dtype: str) -> int:
    """Return bytes a token of the activations that live at once: the larger of attention and MLP.

    Attention: residual, normed, q, k, v, out. MLP: residual, normed, gate, up, product.
    """
    query, hidden = config.num_heads * config.head_dim, config.hidden_size
    attention = 2 * hidden + 2 * query + 2 * config.num_kv_heads * config.head_dim
    mlp = 2 * hidden + 3 * config.intermediate_size
    return max(attention, mlp) * dtype_row(dtype).itemsize


def _known(name: str) -> str:
    if name in QUANTISED:
        return name
    try:
        return dtype_row(name).name
    except ValueError as error:
        raise PlanError(f"{error}; weights may also be {' or '.join(QUANTISED)}") from None


def _largest_step(request: PlanRequest) -> tuple[int, int]:
    """Return T and B of the largest step, padding to a gear included."""
    tokens = max([request.step_tokens, *(gear[0] for gear in request.gears)])
    return tokens, max([request.max_batch, *(gear[1] for gear in request.gears)])


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


def _constants(
    config: ModelConfig, request: PlanRequest, weight_dtype: str
) -> tuple[LedgerRow, ...]:
    sizes = count_weights(config)
    weights = weight_bytes(sizes, weight_dtype, _known(request.dtype))
    kept = "as stored" if weight_dtype not in QUANTISED else f"vectors {request.dtype}, scales fp16"
    how = f"{sizes.parameters:,} elements, {weight_dtype} ({kept})"
    tables = 2 * request.max_seq_len * config.head_dim * 4
    rows = [
        LedgerRow("weights", weights, how),
        LedgerRow("rotary tables", tables, "cos and sin, float32 [max_seq_len, D]"),
    ]
    attention = request.target.family.attention
    masked = request.target.is_host or (attention and attention.op == _MASKED_OPERATOR)
    if masked and not request.is_composed:
        rows.append(LedgerRow("causal mask", _MASK_BYTES, "constant bool [2048, 2048]"))
    return tuple(rows)


def _outputs(config: ModelConfig, kv_dtype: str, composed: bool) -> tuple[OutputBinding, ...]:
    logits = OutputBinding("logits", "logits", "float32", ("R", config.vocab_size))
    best = OutputBinding("next_ids", "argmax", "int32", ("R",))
    if not composed:
        return (logits, best)
    width = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return (logits, best, OutputBinding("new_rows", "new_rows", kv_dtype, ("T", width)))


def _mean_len(request: PlanRequest) -> float:
    if request.mean_len is not None:
        return request.mean_len
    if request.fill is not None:
        return request.fill * request.max_seq_len
    return request.max_seq_len / 2
