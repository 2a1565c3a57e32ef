"""ONNX with pagedom operators -> GE-IR, as ATC's parser with our plugin would build it.

One ONNX node becomes one GE node, with these exceptions: SwiGlu(gate, up) becomes
ConcatD + SwiGlu (GE's takes one tensor and splits it), Rotary gets its angles as [T,1,D], and
PagedAttention and TokenAttention see the caches as [P,S,K*D] (the BnBsH layout of their operators),
and the first gets the constant causal mask that sparse modes 3 and 4 ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from ..runtime.dtypes import dtype
from ..runtime.om_file.ge_graph import Graph, Node, TensorDesc
from .ge_build import GeBuild, WeightParts
from .ge_errors import GeImportError
from .ge_import_cache import (
    FIA_INPUTS,
    causal_mask,
    kv_update,
    paged_attention,
    slot_update,
    token_attention,
)
from .ge_import_ops import BASE_HANDLERS
from .ge_import_ops import attribute as _attr

__all__ = ["FIA_INPUTS", "GeImportError", "Importer", "causal_mask", "import_onnx"]


class Importer:
    """Builds one graph; `edges` maps an ONNX value name to the GE edge that carries it."""

    def __init__(self, model: ir.Model, name: str) -> None:
        self.model = model
        self.build = GeBuild(Graph(name))
        self.edges: dict[str, str] = {}

    def run(self) -> GeBuild:
        """Return the graph; its NetOutput has logits, next_ids and new_rows where there are any."""
        for index, value in enumerate(self.model.graph.inputs):
            self._data(index, value)
        for node in self.model.graph:
            handler = HANDLERS.get((node.domain or "", node.op_type))
            if handler is None:
                raise GeImportError(
                    f"node {node.name} has operator {node.domain or 'ai.onnx'}::{node.op_type}, "
                    f"which has no GE-IR form here; known are "
                    + ", ".join(sorted(kind for _, kind in HANDLERS))
                )
            handler(self, node)
        self._outputs()
        self.build.drop_unused()
        return self.build

    # -- values

    def desc(self, value: ir.Value) -> TensorDesc:
        """Descriptor of an ONNX value; a symbolic extent is -1."""
        if value.shape is None or value.dtype is None:
            raise GeImportError(f"value {value.name} has no shape or dtype: infer shapes first")
        shape = tuple(d if isinstance(d, int) else -1 for d in value.shape)
        return TensorDesc(_dtype_name(value.dtype), shape)

    def edge(self, value: ir.Value | None) -> str:
        """The GE edge that carries an ONNX value, making its constant at the first use."""
        if value is None:
            return ""
        assert value.name is not None
        if value.name not in self.edges:
            self.edges[value.name] = self._initializer(value)
        return self.edges[value.name]

    def _initializer(self, value: ir.Value) -> str:
        assert value.name is not None
        name = value.metadata_props.get("pagedom.weight")
        if name is None:
            if value.const_value is None:
                raise GeImportError(f"value {value.name} is neither computed nor a constant")
            return self.build.constant(value.name, value.const_value.numpy())
        desc = self.desc(value)
        if is_transposed(value):
            desc = TensorDesc(desc.dtype, desc.shape[::-1])
        return self.build.weight(name, WeightParts((name,)), desc)

    def _data(self, index: int, value: ir.Value) -> None:
        assert value.name is not None
        desc = self.desc(value)
        node = Node(value.name, "Data", [], {"index": index}, [desc], [desc], ["x"], ["y"])
        self.edges[value.name] = self.build.add(node)

    def _outputs(self) -> None:
        found = {v.name: v for v in self.model.graph.outputs}
        edge = self.edge(found["logits"])
        axis = self.build.constant("next_ids.axis", np.array(-1, np.int32))
        rows = self.build.desc(edge).shape[0]
        self.build.operator(
            "next_ids",
            "ArgMaxV2",
            [("x", edge), ("dimension", axis)],
            [("y", TensorDesc("int32", (rows,)))],
            dtype=dtype("int32").acl,
        )
        results = [edge, "next_ids:0"]
        if "new_rows" in found:
            results.append(self.edge(found["new_rows"]))
        node = Node("Node_Output", "NetOutput", results, {})
        node.input_descs = [self.build.desc(text) for text in results]
        node.input_names = [f"input{place}" for place in range(len(results))]
        self.build.add(node)

    def operator(
        self, node: ir.Node, kind: str, inputs: list[tuple[str, str]], **attrs: Any
    ) -> Node:
        """Append the GE form of an ONNX node that has one output."""
        made = self.build.operator(
            _name(node), kind, inputs, [("y", self.desc(node.outputs[0]))], **attrs
        )
        self.carry(node, made)
        return made

    def carry(self, node: ir.Node, made: Node) -> None:
        """Let the results of a GE node stand for those of an ONNX node."""
        for index, output in enumerate(node.outputs):
            assert output.name is not None
            self.edges[output.name] = f"{made.name}:{index}"


def import_onnx(model: ir.Model, name: str) -> GeBuild:
    """Translate an exported model; raises GeImportError naming a node that has no GE form."""
    return Importer(model, name).run()


def is_transposed(value: ir.Value) -> bool:
    """Whether an initializer is [in,out] where the checkpoint stores [out,in]."""
    return value.metadata_props.get("pagedom.transposed") in ("true", "1", "True")


def _name(node: ir.Node) -> str:
    assert node.name is not None
    return node.name


def _dtype_name(kind: ir.DataType) -> str:
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(kind.name, kind.name.lower())


def _matmul(importer: Importer, node: ir.Node) -> None:
    x1, x2 = node.inputs
    assert x2 is not None
    inputs = [("x1", importer.edge(x1)), ("x2", importer.edge(x2))]
    transposed = x2.is_initializer() and is_transposed(x2)
    if len(importer.desc(node.outputs[0]).shape) > 2:
        importer.operator(node, "BatchMatMulV2", inputs, adj_x1=False, adj_x2=transposed)
        return
    importer.operator(node, "MatMulV2", inputs, transpose_x1=False, transpose_x2=transposed)


def _gemm(importer: Importer, node: ir.Node) -> None:
    """A product with the weight as the checkpoint stores it: the tied head."""
    if float(_attr(node, "alpha", 1.0)) != 1.0 or int(_attr(node, "transA", 0)):
        raise GeImportError(
            f"node {node.name} is a Gemm with alpha or transA, which is not used here"
        )
    edges = [importer.edge(value) for value in node.inputs]
    importer.operator(
        node,
        "MatMulV2",
        list(zip(("x1", "x2", "bias"), edges)),
        transpose_x1=False,
        transpose_x2=bool(_attr(node, "transB", 0)),
    )


def _gather(importer: Importer, node: ir.Node) -> None:
    axis = int(_attr(node, "axis", 0))
    edge = importer.build.constant(f"gather.axis{axis}", np.array(axis, np.int32))
    inputs = [importer.edge(value) for value in node.inputs]
    importer.operator(
        node, "GatherV2", [("x", inputs[0]), ("indices", inputs[1]), ("axis", edge)], batch_dims=0
    )


def _cast(importer: Importer, node: ir.Node) -> None:
    wanted = importer.desc(node.outputs[0]).dtype
    importer.operator(
        node, "Cast", [("x", importer.edge(node.inputs[0]))], dst_type=dtype(wanted).acl
    )


def _rms_norm(importer: Importer, node: ir.Node) -> None:
    desc = importer.desc(node.outputs[0])
    edges = [importer.edge(value) for value in node.inputs]
    made = importer.build.operator(
        _name(node),
        "RmsNorm",
        zip(("x", "gamma"), edges),
        [("y", desc), ("rstd", TensorDesc("float32", (*desc.shape[:-1], 1)))],
        epsilon=float(_attr(node, "epsilon")),
    )
    importer.carry(node, made)


def _angles(importer: Importer, value: ir.Value | None, wanted: str) -> str:
    """cos or sin [T,D] as [T,1,D] in the dtype of x, made once."""
    edge = importer.edge(value)
    assert value is not None
    key = f"{value.name}.heads"
    if key not in importer.edges:
        desc = importer.build.desc(edge)
        dim = desc.shape[-1]
        shape = importer.build.constant("rope.shape", np.array([-1, 1, dim], np.int64))
        made = importer.build.operator(
            key,
            "Reshape",
            [("x", edge), ("shape", shape)],
            [("y", TensorDesc(desc.dtype, (desc.shape[0], 1, dim)))],
        )
        if desc.dtype != wanted:
            made = importer.build.operator(
                f"{key}.{wanted}",
                "Cast",
                [("x", f"{made.name}:0")],
                [("y", TensorDesc(wanted, (desc.shape[0], 1, dim)))],
                dst_type=dtype(wanted).acl,
            )
        importer.edges[key] = f"{made.name}:0"
    return importer.edges[key]


def _rotary(importer: Importer, node: ir.Node) -> None:
    x, cos, sin = node.inputs
    wanted = importer.desc(node.outputs[0]).dtype
    inputs = [
        ("x", importer.edge(x)),
        ("cos", _angles(importer, cos, wanted)),
        ("sin", _angles(importer, sin, wanted)),
    ]
    importer.operator(node, "RotaryPositionEmbedding", inputs, mode=0)


def _swiglu(importer: Importer, node: ir.Node) -> None:
    gate, up = (importer.edge(value) for value in node.inputs)
    desc = importer.build.desc(gate)
    both = TensorDesc(desc.dtype, (*desc.shape[:-1], 2 * desc.shape[-1]))
    concat = importer.build.operator(
        f"{_name(node)}/Concat",
        "ConcatD",
        [("x0", gate), ("x1", up)],
        [("y", both)],
        concat_dim=len(desc.shape) - 1,
        N=2,
    )
    importer.operator(node, "SwiGlu", [("x", f"{concat.name}:0")], dim=-1)


HANDLERS: Mapping[tuple[str, str], Callable[[Importer, ir.Node], None]] = MappingProxyType(
    {
        **{("", kind): handler for kind, handler in BASE_HANDLERS.items()},
        ("", "MatMul"): _matmul,
        ("", "Gemm"): _gemm,
        ("", "Gather"): _gather,
        ("", "Cast"): _cast,
        ("pagedom", "RmsNorm"): _rms_norm,
        ("pagedom", "Rotary"): _rotary,
        ("pagedom", "SwiGlu"): _swiglu,
        ("pagedom", "KVUpdate"): kv_update,
        ("pagedom", "SlotUpdate"): slot_update,
        ("pagedom", "PagedAttention"): paged_attention,
        ("pagedom", "TokenAttention"): token_attention,
    }
)
