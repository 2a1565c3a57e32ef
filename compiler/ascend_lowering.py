"""From an exported model to the ONNX graph that ATC compiles for one chip.

    form       attention                  cache                                 for
    fused      pagedom nodes, our plugin  key_cache.l … in place; gears: pools  910B, 910_93, 950
    composed   base operators             kv_rows_pool in, new_rows out         310B, 310P, any

310P could run two graphs on one cache that the model writes (passes decode-step and compose-pages:
IncreFlashAttention for steps of one token a sequence, base operators for packed prompts). An
artefact holds one graph so far and our parser plugin has no IncreFlashAttention, so its step graph
is the composed one; `decode_passes` and `prefill_passes` are the other two, executed in tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..graph_ops.registry import OPERATORS
from .atc_shapes import fix_symbols, input_shape_option
from .gear_list import GearList, dims_problem, dynamic_symbols, expand_gear, parse_gears
from .lower.add_argmax import AddArgmax
from .lower.annotate_heads import annotate_for_plugin
from .lower.compose_attention import ComposeAttention
from .lower.compose_pages import ComposePages
from .lower.decode_step import DecodeStep
from .lower.drop_cache_outputs import DropCacheOutputs
from .lower.fix_dims import FixDims
from .lower.infra import PassError, PassResult
from .lower.inline_bodies import InlineBodies
from .lower.onnx_infra import OnnxPass, require_all, run_onnx_passes
from .lower.seq_ends import SeqEnds
from .lower.stack_caches import StackCaches
from .onnx_check import dims, dtype_name
from .target_records import Target
from .target_rules import version_key

FUSED, COMPOSED = "fused", "composed"
SCATTER_PA, SCATTER_ND = "scatter_pa", "scatter_nd"
# Operators of ours with a kernel beside attention (facts: ascend_ops 1.5): not on 310B.
_KERNELS = frozenset({"RmsNorm", "Rotary", "SwiGlu"})
_WITHOUT_KERNELS = frozenset({"Ascend310B"})
_WHOLE = frozenset({"stack-caches", "compose-attention", "drop-cache-outputs"})


@dataclass(frozen=True)
class AtcLowering:
    """What one graph is lowered for.

    `gears`: none = T, B, R stay open (a range model), one = static shapes, more = gears.
    """

    table_width: int  # M
    num_pages: int  # P, the null page included; 0 = open, for a range model
    gears: tuple[tuple[int, int], ...] = ()  # (T, B)
    attention: str = FUSED  # or "composed"
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
    writer, slot = _cache_writer(target, options, notes) if form == FUSED else (None, -1)
    keep = frozenset() if target.family.name in _WITHOUT_KERNELS else _KERNELS
    passes: Sequence[OnnxPass] = (
        fused_passes(options) if form == FUSED else rows_passes(options, keep)
    )
    results = run_onnx_passes(model, passes)
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
    tiling = form == FUSED and bool(options.gears) and _has_tiling(target)
    values = [*model.graph.inputs, *model.graph.outputs]
    return AtcGraph(
        model,
        shapes,
        fix_symbols(_shapes(model.graph.outputs), fixed),
        {str(value.name): dtype_name(value) for value in values},
        gears,
        form,
        writer,
        slot,
        tiling,
        tuple(notes),
        results,
    )


def fused_passes(options: AtcLowering) -> list[OnnxPass]:
    """pagedom nodes stay; geared models get stacked pools, others a cache a layer."""
    stack = [StackCaches(options.num_pages)] if len(options.gears) > 1 else []
    strip = InlineBodies(frozenset(OPERATORS))
    fix = FixDims({"M": options.table_width})
    return [DropCacheOutputs(), SeqEnds(), *stack, fix, AddArgmax(), strip]


def rows_passes(options: AtcLowering, keep: frozenset[str]) -> list[OnnxPass]:
    """Attention in base operators, new rows as an output; `keep` = operators with a kernel."""
    compose = ComposeAttention(options.table_width)
    return [DropCacheOutputs(), compose, InlineBodies(keep), AddArgmax()]


def prefill_passes(options: AtcLowering) -> list[OnnxPass]:
    """310P, packed prompts: base operators over stacked pools that KVUpdate writes."""
    stack, compose = StackCaches(options.num_pages), ComposePages(options.table_width)
    return [DropCacheOutputs(), stack, compose, InlineBodies(_KERNELS | {"KVUpdate"}), AddArgmax()]


def decode_passes(options: AtcLowering) -> list[OnnxPass]:
    """310P, one token a sequence: IncreFlashAttention over the same stacked pools."""
    stack, strip = StackCaches(options.num_pages), InlineBodies(frozenset(OPERATORS))
    fix = FixDims({"M": options.table_width})
    return [DropCacheOutputs(), stack, DecodeStep(), fix, AddArgmax(), strip]


def _choose_form(target: Target, options: AtcLowering) -> tuple[str, list[str]]:
    """Return the form, and why it is not the fused one."""
    attention = target.family.attention
    if options.attention == COMPOSED:
        return COMPOSED, ["attention: composed, as asked for"]
    if attention is None:
        return COMPOSED, [f"attention: composed; {target.name} has no operator over a paged cache"]
    if "prefill" not in attention.phases:
        return COMPOSED, [
            f"attention: composed; {attention.op} takes one token a sequence and the parser plugin "
            "does not build it, so one graph serves prompts and single tokens"
        ]
    return FUSED, [f"attention: {attention.op}, layout TND, cache {attention.cache_layout}"]


def _cache_writer(target: Target, options: AtcLowering, notes: list[str]) -> tuple[str, int]:
    """Return the plugin's cache writer and the slot of padding tokens."""
    write, cann = target.family.cache_write, options.cann
    old = cann is not None and version_key(cann) < version_key(write.min_cann)
    if old:
        notes.append(
            f"cache: {write.fallback}; {write.op} needs CANN {write.min_cann}, this is {cann}. "
            "Padding tokens are written into the null page"
        )
        return SCATTER_ND, 0
    notes.append(f"cache: {write.op}, padding tokens have slot -1")
    return SCATTER_PA, -1


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
