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
from dataclasses import dataclass

import onnx_ir as ir

from ..graph_ops.registry import OPERATORS
from .atc_shapes import fix_symbols, input_shape_option
from .attention_form import COMPOSED, FUSED, TOKENS, attention_form
from .gear_list import GearList, dims_problem, dynamic_symbols, expand_gear, parse_gears
from .host_forms import ROWS
from .lower.add_argmax import AddArgmax
from .lower.annotate_heads import annotate_for_plugin
from .lower.compose_attention import ComposeAttention
from .lower.drop_cache_outputs import DropCacheOutputs
from .lower.fix_dims import FixDims
from .lower.infra import PassError, PassResult
from .lower.inline_bodies import InlineBodies
from .lower.onnx_infra import OnnxPass, require_all, run_onnx_passes
from .lower.seq_ends import SeqEnds
from .lower.stack_caches import StackCaches
from .lower.token_attention import TokenAttention, TokenLimits
from .onnx_check import dims, dtype_name
from .plugin_sources import PADDING_SLOT, SCATTER_ND, choose_cache_write
from .target_records import FusedAttention, Target

# Operators of ours with a kernel beside attention (facts: ascend_ops 1.5): not on 310B.
_KERNELS = frozenset({"RmsNorm", "Rotary", "SwiGlu"})
_WITHOUT_KERNELS = frozenset({"Ascend310B"})
_WHOLE = frozenset({"stack-caches", "compose-attention", "drop-cache-outputs", "token-attention"})


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


@dataclass(frozen=True)
class AtcGraph:
    """A lowered graph and what ATC and the manifest have to know of it."""

    model: ir.Model
    shapes: Mapping[str, tuple[int | str, ...]]  # inputs in order; a str is a -1
    outputs: Mapping[str, tuple[int | str, ...]]
    dtypes: Mapping[str, str]  # of inputs and outputs
    gears: GearList | None
    form: str
    cache_writer: str | None  # the plugin's form of KVUpdate, None for rows
    padding_slot: int
    device_tiling: bool
    notes: tuple[str, ...]
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
    form, notes = _choose_form(target, options)
    writer = None if form == COMPOSED else _cache_writer(target, options, notes)
    results = run_onnx_passes(model, form_passes(form, target, options))
    for name in _WHOLE & results.keys():
        require_all(name, results[name])
    annotate_for_plugin(model)
    fixed = {"M": options.table_width}
    if options.num_pages:
        fixed["P"] = options.num_pages
    if len(options.gears) == 1:
        tokens, seqs = options.gears[0]
        fixed |= {"T": tokens, "B": seqs, "B+1": seqs + 1, "R": seqs}
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
        writer,
        PADDING_SLOT[writer] if writer else -1,
        tiling,
        tuple(notes),
        results,
    )


def form_passes(form: str, target: Target, options: AtcLowering) -> Sequence[OnnxPass]:
    """Return the passes that make one form of a model for a chip."""
    if form == COMPOSED:
        keep = frozenset() if target.family.name in _WITHOUT_KERNELS else _KERNELS
        return rows_passes(options, keep)
    op = target.family.attention
    if form == TOKENS and op is not None:
        return token_passes(options, token_limits(op))
    return fused_passes(options)


def fused_passes(options: AtcLowering) -> list[OnnxPass]:
    """pagedom nodes stay; geared models get stacked pools, others a cache a layer."""
    fix = FixDims({"M": options.table_width})
    return [DropCacheOutputs(), SeqEnds(), *_stack(options), fix, AddArgmax(), _strip_bodies()]


def token_passes(options: AtcLowering, limits: TokenLimits) -> list[OnnxPass]:
    """The same with each token as a sequence: 310P's operator takes no more a sequence."""
    tokens = TokenAttention(options.table_width, limits)
    return [DropCacheOutputs(), tokens, *_stack(options), AddArgmax(), _strip_bodies()]


def rows_passes(options: AtcLowering, keep: frozenset[str]) -> list[OnnxPass]:
    """Attention in base operators, new rows as an output; `keep` = operators with a kernel."""
    compose = ComposeAttention(options.table_width)
    return [DropCacheOutputs(), compose, InlineBodies(keep), AddArgmax()]


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


def _strip_bodies() -> InlineBodies:
    return InlineBodies(frozenset(OPERATORS))


def _choose_form(target: Target, options: AtcLowering) -> tuple[str, list[str]]:
    """Return the form, and what there is to say about it."""
    attention = target.family.attention
    form = attention_form(target, options.cache_write)
    if options.cache_write == ROWS:
        return form, ["attention: composed, as asked for"]
    if attention is None:
        text = f"attention: composed; {target.name} has no operator over a paged cache"
        return form, [text]
    layout = "TND" if form == FUSED else "BSH, each token as a sequence of its own"
    return form, [f"attention: {attention.op}, layout {layout}, cache {attention.cache_layout}"]


def _cache_writer(target: Target, options: AtcLowering, notes: list[str]) -> str:
    """Return the plugin's cache writer, which decides the slot of padding tokens too."""
    write, cann = target.family.cache_write, options.cann
    writer = choose_cache_write(cann or "", write.op)
    if writer == SCATTER_ND:
        why = ""
        if write.fallback:
            why = f"; {write.op} needs CANN {write.min_cann}, this is {cann}"
        notes.append(
            f"cache: {write.fallback or write.op}{why}. Padding tokens are written into the null "
            "page"
        )
    else:
        notes.append(f"cache: {write.op}, padding tokens have slot -1")
    return writer


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
