"""Graphs of the parser plugin: the same as the host compiler builds for the same nodes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin_headers"))

from plugin_host import INT, PluginHost, attributes, load_plugin, plain

from pagedom.compiler.export import ExportOptions, export_onnx
from pagedom.compiler.ge_import import Importer
from pagedom.compiler.lower.annotate_heads import annotate_for_plugin
from pagedom.compiler.lower.drop_cache_outputs import DropCacheOutputs
from pagedom.compiler.lower.infra import PassError
from pagedom.compiler.lower.seq_ends import swap_lengths
from pagedom.compiler.lower.slot_update import SlotUpdate
from pagedom.compiler.lower.stack_caches import StackCaches
from pagedom.compiler.lower.token_attention import TokenAttention, TokenLimits
from pagedom.compiler.plugin_sources import registered_operators
from pagedom.graph_ops.registry import OPERATORS
from pagedom.models.config import ModelConfig
from pagedom.models.rope import RopeConfig

EPSILON = 1.2345678e-5  # "%g" keeps six digits of it
CONFIG = ModelConfig(
    family="llama",
    name="tiny",
    vocab_size=11,
    hidden_size=24,
    intermediate_size=20,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=6,
    rms_norm_eps=EPSILON,
    max_positions=64,
    rope=RopeConfig(dim=6),
    tie_embeddings=False,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    windows=(-1, 9),
    bos_id=None,
    eos_ids=(),
    checkpoint_dtype="float32",
)
PAGE_SIZE = 16


@pytest.fixture(scope="module")
def plugin(request: pytest.FixtureRequest) -> PluginHost:
    return load_plugin(request.config)


@pytest.fixture(scope="module", params=["float16", "float32"])
def exported(request: pytest.FixtureRequest) -> ir.Model:
    model = export_onnx(CONFIG, ExportOptions(request.param, 32, PAGE_SIZE))
    swap_lengths(model)
    model.functions.clear()
    return model


def nodes(model: ir.Model, kind: str) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == kind and node.domain == "pagedom"]


# -- registration


def test_each_operator_is_registered_with_its_domain_and_version(plugin: PluginHost) -> None:
    expected = {
        f"{op.schema.domain}::{op.schema.version}::{name}" for name, op in OPERATORS.items()
    }
    made = {entry["origin"]: entry for entry in plugin.registrations()}
    assert set(made) == expected
    assert len(plugin.registrations()) == len(expected)
    assert {origin: entry["ge"] for origin, entry in made.items()} == registered_operators()
    for entry in made.values():
        assert (entry["framework"], entry["imply"]) == (5, 1)  # ONNX, TVM
        assert entry["expands"] == (entry["ge"] == "PartitionedCall")


# -- the same graph as the host compiler builds


def plugin_tree(made: dict[str, Any], host: PluginHost, inputs: list[str]) -> Any:
    """The first output of an expanded node as nested (type, attributes, inputs)."""
    graph = made["graph"]
    by_name = {node["name"]: node for node in graph["nodes"]}

    def tree(name: str, index: int) -> Any:
        node = by_name[name]
        if node["type"] == "Data":
            return inputs[node["attrs"]["index"]]
        if node["type"] == "Const":
            value = host.tensor(node["attrs"]["value"])
            return ("Const", value.dtype.name, value.tobytes(), value.shape)
        fed = {entry[0]: tree(*entry[1:]) for entry in node["inputs"] if len(entry) > 1}
        return (node["type"], index, plain(node["attrs"]), fed)

    return [tree(name, index) for name, index in graph["outputs"]]


DYNAMIC = {"key": "key0", "value": "value0"}  # a list input's first member
ATTENTION = ("FusedInferAttentionScore", "IncreFlashAttention")


def importer_tree(importer: Importer, node: ir.Node) -> Any:
    """The same for what compiler/ge_import.py built for an ONNX node."""
    build = importer.build
    by_name = {made.name: made for made in build.graph.nodes}
    leaves = {importer.edges[str(value.name)]: str(value.name) for value in node.inputs}

    def tree(edge: str) -> Any:
        if edge in leaves:
            return leaves[edge]
        name, _, index = edge.rpartition(":")
        made = by_name[name]
        if made.type == "Const":
            value = build.arrays[name]
            return ("Const", value.dtype.name, value.tobytes(), value.shape)
        rename = DYNAMIC if made.type in ATTENTION else {}
        fed = {
            rename.get(ir_name, ir_name): tree(fed)
            for ir_name, fed in zip(made.input_names, made.inputs)
            if fed
        }
        attrs = {k: np.float32(v) if isinstance(v, float) else v for k, v in made.attrs.items()}
        return (made.type, int(index), attrs, fed)

    return [tree(importer.edges[str(value.name)]) for value in node.outputs]


def imported(model: ir.Model) -> Importer:
    importer = Importer(model, "tiny")
    importer.run()
    return importer


@pytest.mark.parametrize("kind", ["PagedAttention", "SwiGlu"])
def test_subgraphs_equal_those_of_the_host_compiler(
    exported: ir.Model, plugin: PluginHost, kind: str
) -> None:
    annotated = exported.clone()
    annotate_for_plugin(annotated)
    importer = imported(exported)
    pairs = list(zip(nodes(exported, kind), nodes(annotated, kind)))
    assert len(pairs) == CONFIG.num_layers
    for plain_node, node in pairs:
        made = plugin.parse_node(node)
        assert made["parsed"]
        assert made["expanded"]
        assert made["problems"] == []
        names = [str(value.name) for value in plain_node.inputs]
        assert plugin_tree(made, plugin, names) == importer_tree(importer, plain_node)


def test_310ps_operators_equal_the_host_compilers(plugin: PluginHost) -> None:
    config = replace(CONFIG, head_dim=16, rope=RopeConfig(dim=16), windows=(-1, -1))
    model = export_onnx(config, ExportOptions("float16", 32, PAGE_SIZE))
    model.functions.clear()
    tokens = TokenAttention(2, TokenLimits(("float16",), 128, 16, 32))
    for rewrite in (DropCacheOutputs(), tokens, StackCaches(9), SlotUpdate(9)):
        assert rewrite(model).skipped == []
    importer = imported(model.clone())
    annotate_for_plugin(model)
    for kind in ("TokenAttention", "SlotUpdate"):
        made_nodes = nodes(model, kind)
        assert len(made_nodes) == config.num_layers
        for node in made_nodes:
            made = plugin.parse_node(node)
            assert (made["parsed"], made["expanded"], made["problems"]) == (True, True, [])
            names = [str(value.name) for value in node.inputs]
            assert plugin_tree(made, plugin, names) == importer_tree(importer, node)


def test_rotary_equals_the_host_compiler_with_and_without_prepared_angles(
    exported: ir.Model, plugin: PluginHost
) -> None:
    importer = imported(exported)
    node = nodes(exported, "Rotary")[0]
    dtype = node.inputs[0].dtype  # type: ignore[union-attr]
    codes = {ir.DataType.FLOAT: 0, ir.DataType.FLOAT16: 1}
    text = attributes(dtype=(INT, codes[dtype]), head_dim=(INT, 6))  # type: ignore[index]
    made = plugin.parse("pagedom::1::Rotary", "rotary", text)
    assert made["problems"] == []
    names = [str(value.name) for value in node.inputs]
    assert plugin_tree(made, plugin, names) == importer_tree(importer, node)

    annotate_for_plugin(exported)
    made = plugin.parse_node(node)
    assert made["problems"] == []
    names = [str(value.name) for value in node.inputs]
    assert plugin_tree(made, plugin, names) == [
        ("RotaryPositionEmbedding", 0, {"mode": 0}, dict(zip(("x", "cos", "sin"), names)))
    ]


def test_annotated_angles_are_made_once_for_all_layers(exported: ir.Model) -> None:
    model = exported.clone()
    annotate_for_plugin(model)
    rotaries = nodes(model, "Rotary")
    assert len(rotaries) == 2 * CONFIG.num_layers
    for index in (1, 2):
        (angles,) = {id(node.inputs[index]): node.inputs[index] for node in rotaries}.values()
        assert angles is not None
        assert angles.shape is not None
        assert list(angles.shape)[1:] == [1, 6]
        assert angles.dtype == rotaries[0].inputs[0].dtype  # type: ignore[union-attr]
    assert annotate_for_plugin(model) == 0
    order = [node.name for node in model.graph]
    ir.passes.common.TopologicalSortPass()(model)
    assert order == [node.name for node in model.graph]


def test_attributes_of_one_to_one_operators_arrive(exported: ir.Model, plugin: PluginHost) -> None:
    model = exported.clone()
    annotate_for_plugin(model)
    for node in nodes(model, "RmsNorm"):
        made = plugin.parse_node(node)
        assert (made["parsed"], made["problems"]) == (True, [])
        assert made["node"]["type"] == "RmsNorm"
        assert np.float32(made["node"]["attrs"]["epsilon"]["float"]) == np.float32(EPSILON)
    for node in nodes(model, "KVUpdate"):
        made = plugin.parse_node(node)
        assert (made["parsed"], made["problems"]) == (True, [])
        assert made["node"]["attrs"] == {"cache_mode": "Norm"}
        # wired by position: the inputs of ours are the first ones of the prototype
        names = [entry[0] for entry in made["node"]["inputs"]]
        schema = OPERATORS["KVUpdate"].schema
        assert names[: len(schema.inputs)] == [param.name for param in schema.inputs]


def test_slots_are_written_without_anything_in_between(plugin: PluginHost) -> None:
    made = plugin.parse("pagedom::1::SlotUpdate", "write", None)
    assert made["problems"] == []
    assert made["outputs"] == 2
    names = ["key", "key_slots", "slots", "value", "value_slots"]
    shape = ("Const", "int64", np.array([-1, 1], np.int64).tobytes(), (2,))
    indices = ("Reshape", 0, {}, {"x": "slots", "shape": shape})
    assert plugin_tree(made, plugin, names) == [
        ("ScatterNdUpdate", 0, {}, {"var": var, "indices": indices, "updates": rows})
        for rows, var in (("key", "key_slots"), ("value", "value_slots"))
    ]


# -- the pass


def test_the_pass_refuses_function_bodies_and_open_dims() -> None:
    model = export_onnx(CONFIG, ExportOptions("float32", 32, PAGE_SIZE))
    with pytest.raises(PassError, match=r"function bodies of KVUpdate, .* are still in the model"):
        annotate_for_plugin(model)
    model.functions.clear()
    node = nodes(model, "PagedAttention")[0]
    cache = node.inputs[1]
    assert cache is not None
    cache.shape = ir.Shape(["P", "S", 2, 6])
    with pytest.raises(PassError, match=r"/layers\.0/attn/PagedAttention .* has dim S"):
        annotate_for_plugin(model)
