"""From an exported model to the ONNX graph that ATC compiles for one chip.

form       attention                             cache                              for
fused      PagedAttention, by our plugin         key_cache.l … in place; gears: pools   910B,
                                                                                    910_93, 950
tokens     TokenAttention, by our plugin: each   the same, by ScatterNdUpdate       310P
           token is a sequence of its own
composed   base operators                        kv_rows_pool in, new_rows out      310B, any
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import onnx_ir as ir

from ..runtime.packed_batch import step_symbols
from .atc_shapes import fix_symbols, input_shape_option
from .attention_form import COMPOSED, TOKENS, attention_form
from .gear_list import GearList, dims_problem, dynamic_symbols, expand_gear, parse_gears
from .lower.add_argmax import AddArgmax
from .lower.annotate_heads import annotate_for_plugin
from .lower.compose_attention import ComposeAttention
from .lower.drop_cache_outputs import DropCacheOutputs
from .lower.fix_dims import FixDims
from .lower.infra import PassError, PassResult
from .lower.inline_bodies import InlineBodies
from .lower.onnx_infra import OnnxPass, require_all, run_onnx_passes
from .lower.seq_ends import SeqEnds
from .lower.slot_update import SlotUpdate
from .lower.stack_caches import StackCaches
from .lower.token_attention import TokenAttention, TokenLimits
from .onnx_check import dims, dtype_name
from .target_records import FusedAttention, Target
from .target_rules import writes_by_slot

_WHOLE = frozenset(
    {"stack-caches", "compose-attention", "drop-cache-outputs", "token-attention", "slot-update"}
)


@dataclass(frozen=True)
class AtcLowering:
    """What one graph is lowered for.

    `gears`: none = T, B, R stay open (a range model), one = static shapes, more = gears.
    """

    table_width: int  # M
    num_pages: int  # P, the null page included; 0 = open, for a range model
    gears: tuple[tuple[int, int], ...] = ()  # (T, B)
    cache_write: str | None = None  # "rows" asks for the composed form
    cann: str | None = None  # version that compiles, None = the newest form
    lacking: frozenset[str] = frozenset()  # operators of ours without a kernel in that CANN


@dataclass(frozen=True)
class AtcGraph:
    """A lowered graph and what ATC and the manifest have to know of it."""

    model: ir.Model
    shapes: Mapping[str, tuple[int | str, ...]]  # inputs in order; a str is a -1
    outputs: Mapping[str, tuple[int | str, ...]]
    dtypes: Mapping[str, str]  # of inputs and outputs
    gears: GearList | None
    form: str
    padding_slot: int
    device_tiling: bool
    passes: Mapping[str, PassResult]

    @property
    def input_shape(self) -> str:
        """The value of --input_shape."""
        return input_shape_option(self.shapes)

    @property
    def dynamic_dims(self) -> str | None:
        """The value of --dynamic_dims, None without gears."""
        return None if self.gears is None else self.gears.dynamic_dims


def lower_for_atc(model: ir.Model, target: Target, options: AtcLowering) -> AtcGraph:
    """Lower an exported model (changed in place) for a chip.

    Raises PassError naming the pass and the place where the model does not fit, GearError.
    """
    form = attention_form(target, options.cache_write)
    results = run_onnx_passes(model, form_passes(form, target, options))
    for name in _WHOLE & results.keys():
        require_all(name, results[name])
    annotate_for_plugin(model)
    fixed = {"M": options.table_width}
    if options.num_pages:
        fixed["P"] = options.num_pages
    if len(options.gears) == 1:
        tokens, seqs = options.gears[0]
        fixed |= step_symbols(tokens, seqs, seqs)
    shapes = fix_symbols(_shapes(model.graph.inputs), fixed)
    gears = _gears(shapes, options, target) if len(options.gears) > 1 else None
    tiling = form != COMPOSED and bool(options.gears) and _has_tiling(target)
    values = [*model.graph.inputs, *model.graph.outputs]
    return AtcGraph(
        model,
        shapes,
        fix_symbols(_shapes(model.graph.outputs), fixed),
        {str(value.name): dtype_name(value) for value in values},
        gears,
        form,
        0 if SlotUpdate.name in results else -1,  # ScatterNdUpdate knows no negative index
        tiling,
        results,
    )


def form_passes(form: str, target: Target, options: AtcLowering) -> Sequence[OnnxPass]:
    """Return the passes that make one form of a model for a chip."""
    kernels = target.family.kernels - options.lacking
    if form == COMPOSED:
        return rows_passes(options, kernels)
    op = target.family.attention
    if form == TOKENS and op is not None:
        return token_passes(options, token_limits(op), kernels)
    return fused_passes(options, kernels, writes_by_slot(target, options.cann))


def fused_passes(
    options: AtcLowering, kernels: AbstractSet[str], by_slots: bool = False
) -> list[OnnxPass]:
    """pagedom nodes with a kernel stay; geared models get stacked pools, others a cache a layer."""
    fix = FixDims({"M": options.table_width})
    slots = [SlotUpdate(options.num_pages)] if by_slots else []
    inline = InlineBodies(kernels | {"KVUpdate", "SlotUpdate", "PagedAttention"})
    return [DropCacheOutputs(), SeqEnds(), *_stack(options), *slots, fix, AddArgmax(), inline]


def token_passes(
    options: AtcLowering, limits: TokenLimits, kernels: AbstractSet[str]
) -> list[OnnxPass]:
    """The same with each token as a sequence, and the cache as slots: 310P's operators."""
    tokens, slots = TokenAttention(options.table_width, limits), SlotUpdate(options.num_pages)
    inline = InlineBodies(kernels | {"SlotUpdate", "TokenAttention"})
    return [DropCacheOutputs(), tokens, *_stack(options), slots, AddArgmax(), inline]


def rows_passes(options: AtcLowering, kernels: AbstractSet[str]) -> list[OnnxPass]:
    """Attention in base operators, new rows as an output."""
    compose = ComposeAttention(options.table_width)
    return [DropCacheOutputs(), compose, InlineBodies(kernels), AddArgmax()]


def token_limits(op: FusedAttention) -> TokenLimits:
    """Return what a chip's record says as the pass wants it; 0 = no limit is known."""
    return TokenLimits(
        op.dtypes,
        op.max_head_dim.value or 0,
        op.head_dim_multiple.value or 1,
        op.max_group.value or 0,
    )


def _stack(options: AtcLowering) -> list[OnnxPass]:
    return [StackCaches(options.num_pages)] if len(options.gears) > 1 else []


def _has_tiling(target: Target) -> bool:
    return target.family.feature("tiling on device").supported


def _gears(
    shapes: Mapping[str, tuple[int | str, ...]], options: AtcLowering, target: Target
) -> GearList:
    limits = target.family.gears
    problem = dims_problem(shapes, limits)
    if problem:
        raise PassError(problem)
    symbols = dynamic_symbols(shapes)
    text = ";".join(
        ",".join(str(size) for size in expand_gear(gear, symbols)) for gear in options.gears
    )
    return parse_gears(text, len(symbols), limits)


def _shapes(values: Sequence[ir.Value]) -> dict[str, tuple[int | str, ...]]:
    """Return names and shapes; an extent that only the run knows would be None, and is refused."""
    found = {str(value.name): dims(value) for value in values}
    unknown = [name for name, shape in found.items() if None in shape]
    if unknown:
        raise PassError(f"{unknown[0]} has shape {found[unknown[0]]}: a symbol was lost")
    return {name: tuple(dim for dim in shape if dim is not None) for name, shape in found.items()}
