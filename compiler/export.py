"""Export: from a model's configuration to an ONNX graph of our operators.

`torch.onnx.export(dynamo=True)` traces the decoder on the meta device, so no weight is touched;
`onnx_cleanup` then gives the graph the form that every later stage relies on:

Inputs, in this order     input_ids, positions, slot_mapping int32 [T]; block_table int32 [B,M];
                          cu_seqlens int32 [B+1]; kv_lens int32 [B]; logits_rows int32 [R];
                          key_cache.0 … key_cache.{L-1}, value_cache.0 … [P,S,K,D] in the dtype
Outputs                   logits float32 [R,V]; key_cache_out.l; value_cache_out.l (all layers)
Nodes                     /embed_tokens/Gather  /rope/cos/Gather  /rope/sin/Gather
                          /layers.3/input_layernorm/RmsNorm
                          /layers.3/attn/q_proj/MatMul [q_proj/Add: bias] q_proj/Reshape (k, v too)
                          /layers.3/attn/q_rotary/Rotary  /layers.3/attn/k_rotary/Rotary
                          /layers.3/attn/KVUpdate  /layers.3/attn/PagedAttention
                          /layers.3/attn/Reshape  /layers.3/attn/o_proj/MatMul  /layers.3/Add
                          /layers.3/post_attention_layernorm/RmsNorm
                          /layers.3/mlp/gate_proj/MatMul  …/up_proj/MatMul  /layers.3/mlp/SwiGlu
                          /layers.3/mlp/down_proj/MatMul  /layers.3/Add_1
                          /logits_rows/Gather  /norm/RmsNorm  /lm_head/MatMul (tied: /lm_head/Gemm
                          with transB=1)  /lm_head/Cast (not in float32)
Values                    <node name>_output_0, unless they are graph outputs
Initializers              every weight under its canonical name, with metadata `pagedom.weight` =
                          that name; `pagedom.transposed` = "1" where the ONNX data is [in,out]
                          while the checkpoint holds [out,in] (all products but a tied head);
                          `rope.cos`, `rope.sin` float32 [max_seq_len, D];
                          `shape.Tx9x64` and the like: int64 targets of Reshape
Domains                   "" version 18 and "pagedom" version 1, one function body per operator used
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import onnxscript
import torch

from ..graph_ops.bodies import OPSET, TORCH_TYPES
from ..graph_ops.registry import OPERATORS
from ..graph_ops.schema import DOMAIN, FLOATS, ONNX_OPSET, VERSION, OpSchema
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.rope import cos_sin
from .onnx_check import check_exported
from .onnx_cleanup import (
    WEIGHT,
    fold_reshape_shapes,
    fold_weight_transposes,
    name_nodes,
    name_symbols,
)

Progress = Callable[[str, int, int], None]  # stage, done, total


class ExportError(ValueError):
    """A model cannot be exported as asked, or the exporter gave a graph that is not ours."""


@dataclass(frozen=True)
class ExportOptions:
    """What the graph is specialised for."""

    dtype: str = "float32"  # of weights, activations and caches
    max_seq_len: int = 2048  # tokens; rows of the rope tables
    page_size: int = 64  # tokens; S

    def __post_init__(self) -> None:
        if self.dtype not in FLOATS:
            raise ExportError(f"dtype is {self.dtype!r}; allowed are {', '.join(FLOATS)}")
        for name in ("max_seq_len", "page_size"):
            if getattr(self, name) < 1:
                raise ExportError(f"{name} is {getattr(self, name)}; allowed is at least 1")


def export_onnx(
    config: ModelConfig, options: ExportOptions, progress: Progress | None = None
) -> ir.Model:
    """Return the ONNX model of a configuration; its weights are placeholders without data.

    `progress(stage, done, total)` is called before and after each of the stages. Raises
    ExportError if torch's exporter gives anything that the rules of this file do not cover.
    """
    report = progress or (lambda stage, done, total: None)
    report("trace", 0, 3)
    program = _trace(config, options)
    report("convert", 1, 3)
    model = _convert(program)
    report("clean up", 2, 3)
    try:
        _rename_interface(model.graph, config.num_layers)
        _finish(model, config, options)
    except (ValueError, KeyError) as error:
        raise ExportError(
            f"torch {torch.__version__} exported an unexpected graph: {error}"
        ) from error
    problems = check_exported(model, interface(config, options))
    if problems:
        raise ExportError("the exported graph breaks its own rules: " + "; ".join(problems))
    report("clean up", 3, 3)
    return model


def interface(config: ModelConfig, options: ExportOptions) -> dict[str, tuple[int | str, ...]]:
    """Return the graph's inputs in order, with their shapes in numbers and letters."""
    shapes: dict[str, tuple[int | str, ...]] = {
        "input_ids": ("T",),
        "positions": ("T",),
        "slot_mapping": ("T",),
        "block_table": ("B", "M"),
        "cu_seqlens": ("B+1",),
        "kv_lens": ("B",),
        "logits_rows": ("R",),
    }
    cache = ("P", options.page_size, config.num_kv_heads, config.head_dim)
    for kind in ("key_cache", "value_cache"):
        shapes |= {f"{kind}.{layer}": cache for layer in range(config.num_layers)}
    return shapes


def _trace(config: ModelConfig, options: ExportOptions) -> torch.export.ExportedProgram:
    """Trace the decoder with example sizes that are all different and above 1.

    torch takes a size of 0 or 1, and two equal sizes, for facts about the model.
    """
    sizes = {"T": 11, "B": 3, "M": 5, "P": 7, "R": 2, "B+1": 4}
    dim = {letter: torch.export.Dim(letter) for letter in "TBMPR"}
    symbols = {**dim, "B+1": dim["B"] + 1}
    dtype = TORCH_TYPES[options.dtype]
    inputs, free = [], []
    for name, shape in interface(config, options).items():
        kind = dtype if "cache." in name else torch.int32
        example = [size if isinstance(size, int) else sizes[size] for size in shape]
        inputs.append(torch.empty(example, dtype=kind, device="meta"))
        free.append({axis: symbols[s] for axis, s in enumerate(shape) if isinstance(s, str)})
    with torch.device("meta"):
        decoder = Decoder(config, options.max_seq_len, dtype)
    first, second = 7, 7 + config.num_layers

    def nest(items: list[Any]) -> tuple[Any, ...]:
        return (*items[:first], items[first:second], items[second:])

    with _quiet():
        return torch.export.export(decoder, nest(inputs), dynamic_shapes=nest(free), strict=False)


def _convert(program: torch.export.ExportedProgram) -> ir.Model:
    """Let torch write the ONNX graph, with one node of ours per operator."""
    operators = torch.ops.pagedom
    names = {
        "KVUpdate": operators.kv_update,
        "PagedAttention": operators.paged_attention,
        "RmsNorm": operators.rms_norm,
        "Rotary": operators.rotary,
        "SwiGlu": operators.swiglu,
    }
    table: dict[Callable[..., Any], Callable[..., Any]] = {
        target.default: _node_maker(OPERATORS[name].schema) for name, target in names.items()
    }
    with _quiet():
        exported = torch.onnx.export(
            program,
            dynamo=True,
            custom_translation_table=table,
            opset_version=ONNX_OPSET,
            optimize=False,  # there is nothing to fold but what onnx_cleanup folds
            verbose=False,
        )
    if exported is None:
        raise ExportError("torch.onnx.export returned no program")
    return exported.model


def _node_maker(schema: OpSchema) -> Callable[..., Any]:
    """Return what the exporter calls for one torch operator: it adds one node of ours."""
    formal, kinds = onnx.defs.OpSchema.FormalParameter, onnx.defs.OpSchema.AttrType
    types = {param.name: _onnx_type(param.dtype) for param in schema.inputs}
    op = onnxscript.values.Op(
        OPSET,
        schema.name,
        onnx.defs.OpSchema(
            schema.name,
            schema.domain,
            schema.version,
            inputs=[formal(name, kind) for name, kind in types.items()],
            outputs=[formal(output.name, types[output.like]) for output in schema.outputs],
            type_constraints=[("T", [_onnx_type(name) for name in FLOATS], "")],
            attributes=[
                onnx.defs.OpSchema.Attribute(
                    attribute.name, kinds.INT if attribute.kind is int else kinds.FLOAT, ""
                )
                for attribute in schema.attributes
            ],
        ),
    )

    def make_node(*inputs: Any, **attributes: Any) -> Any:
        return op(*inputs, **schema.attribute_values(attributes))

    return make_node


def _onnx_type(dtype: str) -> str:
    return dtype if dtype == "T" else f"tensor({'float' if dtype == 'float32' else dtype})"


def _rename_interface(graph: ir.Graph, layers: int) -> None:
    """Give graph inputs and outputs the names of the design; the order is right already."""
    for value in graph.inputs:
        kind, _, layer = str(value.name).rpartition("_")
        if kind in ("key_caches", "value_caches"):
            value.name = f"{kind.removesuffix('s')}.{layer}"
    names = ["logits"]
    names += [f"key_cache_out.{layer}" for layer in range(layers)]
    names += [f"value_cache_out.{layer}" for layer in range(layers)]
    for value, name in zip(graph.outputs, names, strict=True):
        value.name = name


def _finish(model: ir.Model, config: ModelConfig, options: ExportOptions) -> None:
    """Run the clean-up, attach function bodies and rope tables, and turn weights to blanks."""
    graph = model.graph
    for value in list(graph.initializers.values()):
        value.const_value = None
        value.metadata_props.clear()
        if str(value.name).startswith("rope."):
            value.name = str(value.name).removesuffix(".weight")
        else:
            value.metadata_props[WEIGHT] = str(value.name)
    fold_weight_transposes(graph)
    fold_reshape_shapes(graph)
    ir.passes.common.RemoveUnusedNodesPass()(model)
    name_symbols(graph, interface(config, options))
    name_nodes(graph)
    cos, sin = cos_sin(config.rope, options.max_seq_len)
    for name, table in (("rope.cos", cos), ("rope.sin", sin)):
        graph.initializers[name].const_value = ir.tensor(table, name=name)
    used = {node.op_type for node in graph if node.domain == DOMAIN}
    model.functions.clear()
    for name in sorted(used):
        function = OPERATORS[name].function(options.dtype)
        model.functions[function.identifier()] = function
    model.opset_imports.clear()
    model.opset_imports.update({"": ONNX_OPSET, DOMAIN: VERSION})
    graph.name = config.name or config.family
    for value in (*graph.inputs, *graph.outputs):
        value.metadata_props.clear()
    graph.metadata_props.clear()
    model.metadata_props.clear()
    model.metadata_props.update(
        {
            "pagedom.dtype": options.dtype,
            "pagedom.max_seq_len": str(options.max_seq_len),
            "pagedom.page_size": str(options.page_size),
        }
    )
    model.producer_name, model.producer_version = "pagedom", None


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the exporter's warnings about its own internals and absent packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
