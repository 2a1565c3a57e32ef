"""Each pass over the ONNX graph: what it leaves, and its reason where it does not match."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from lowered_model import CONFIGS, LLAMA, NUM_PAGES, TABLE_WIDTH, Run, Weights, exported, lower

from pagedom.compiler.ascend_lowering import token_limits
from pagedom.compiler.host_forms import HostForm
from pagedom.compiler.host_passes import form_passes
from pagedom.compiler.lower.add_argmax import AddArgmax
from pagedom.compiler.lower.compose_attention import ComposeAttention
from pagedom.compiler.lower.drop_cache_outputs import DropCacheOutputs
from pagedom.compiler.lower.fix_dims import FixDims
from pagedom.compiler.lower.infra import PassError, PassResult
from pagedom.compiler.lower.inline_bodies import InlineBodies
from pagedom.compiler.lower.onnx_infra import (
    make_node,
    model_problems,
    require_all,
    run_onnx_passes,
)
from pagedom.compiler.lower.seq_ends import SeqEnds
from pagedom.compiler.lower.slot_update import SlotUpdate
from pagedom.compiler.lower.stack_caches import StackCaches
from pagedom.compiler.lower.token_attention import TokenAttention
from pagedom.compiler.onnx_check import dims
from pagedom.compiler.onnx_weights import attach_weights, save_onnx
from pagedom.compiler.target_families import ASCEND_310P

WITHOUT_OUTPUTS = [DropCacheOutputs()]


@pytest.fixture
def model() -> ir.Model:
    return exported(LLAMA)


def shapes(model: ir.Model) -> dict[str, tuple]:
    return {str(value.name): dims(value) for value in model.graph.inputs}


def node(model: ir.Model, name: str) -> ir.Node:
    return next(each for each in model.graph if each.name == name)


def readers(model: ir.Model, name: str) -> list[str]:
    value = next(each for each in model.graph.inputs if each.name == name)
    return [use.node.op_type for use in value.uses()]


def reason(result: PassResult) -> str:
    assert result.modified == 0
    return "; ".join(f"{skip.node}: {skip.reason}" for skip in result.skipped)


def add_reader(model: ir.Model, name: str) -> None:
    """Let one more node read an input."""
    value = next(each for each in model.graph.inputs if each.name == name)
    extra = make_node("Identity", "/extra", [value], dims(value), value.dtype)
    model.graph.insert_before(model.graph[0], extra)


# -- drop-cache-outputs


def test_cache_outputs_go_and_their_updates_stay(model: ir.Model) -> None:
    result = run_onnx_passes(model, WITHOUT_OUTPUTS)["drop-cache-outputs"]
    assert result.modified == 4
    assert [value.name for value in model.graph.outputs] == ["logits"]
    assert sum(each.op_type == "KVUpdate" for each in model.graph) == 2


def test_an_update_nobody_reads_keeps_its_output(model: ir.Model) -> None:
    attention = node(model, "/layers.1/attn/PagedAttention")
    attention.replace_input_with(1, attention.inputs[2])
    result = DropCacheOutputs()(model)
    assert result.modified == 3
    assert [skip.node for skip in result.skipped] == ["key_cache_out.1"]
    assert "its KVUpdate would be removed" in result.skipped[0].reason


# -- stack-caches


def test_stacked_pools_are_a_chain(model: ir.Model) -> None:
    run_onnx_passes(model, [*WITHOUT_OUTPUTS, StackCaches(10)])
    assert shapes(model)["key_pool"] == (20, 16, 2, 16)
    assert list(shapes(model))[-2:] == ["key_pool", "value_pool"]
    for name in ("key_pool", "value_pool"):
        assert readers(model, name) == ["KVUpdate"]  # one: an in-place operator needs no copy
    first, second = (node(model, f"/layers.{layer}/attn/KVUpdate") for layer in (0, 1))
    assert second.inputs[1] is first.outputs[0]
    assert second.inputs[4] is first.outputs[1]
    moved = second.inputs[2].producer()
    assert moved.op_type == "Where"  # padding keeps its -1
    assert moved.inputs[1].producer().inputs[1].const_value.numpy() == 10 * 16
    table = node(model, "/layers.1/attn/PagedAttention").inputs[3].producer()
    assert table.op_type == "Add"
    assert table.inputs[1].const_value.numpy() == 10


def test_stacking_needs_the_outputs_gone(model: ir.Model) -> None:
    assert "run drop-cache-outputs first" in reason(StackCaches(10)(model))


def test_stacking_refuses_a_second_reader(model: ir.Model) -> None:
    add_reader(model, "key_cache.1")
    result = run_onnx_passes(model, [*WITHOUT_OUTPUTS, StackCaches(10)])["stack-caches"]
    assert reason(result).startswith("layer 1: key_cache.1 is read by ['/layers.1/attn/KVUpdate")
    with pytest.raises(PassError, match="stack-caches cannot rewrite this model: layer 1"):
        require_all("stack-caches", result)


def test_stacking_refuses_slots_beyond_int32(model: ir.Model) -> None:
    result = run_onnx_passes(model, [*WITHOUT_OUTPUTS, StackCaches(1 << 27)])["stack-caches"]
    assert "2 layers x 134217728 pages x 16 tokens are 4294967296 slots" in reason(result)


def test_stacking_refuses_unequal_layers(model: ir.Model) -> None:
    run_onnx_passes(model, WITHOUT_OUTPUTS)
    cache = next(value for value in model.graph.inputs if value.name == "key_cache.1")
    cache.shape = ir.Shape(["P", 16, 4, 16])
    with pytest.raises(PassError, match="layer 1 has caches of"):
        StackCaches(10)(model)


@pytest.mark.parametrize(
    ("place", "wanted"),
    [(1, "not both updated caches"), (2, "not both updated caches")],
)
def test_attention_must_read_what_was_written(model: ir.Model, place: int, wanted: str) -> None:
    run_onnx_passes(model, WITHOUT_OUTPUTS)
    attention = node(model, "/layers.0/attn/PagedAttention")
    attention.replace_input_with(place, attention.inputs[3 - place])
    assert wanted in reason(StackCaches(10)(model))


def test_no_caches_no_match(model: ir.Model) -> None:
    run_onnx_passes(model, [*WITHOUT_OUTPUTS, ComposeAttention(TABLE_WIDTH)])
    assert "has no input key_cache.0" in reason(StackCaches(10)(model))
    assert "has no input key_cache.0" in reason(ComposeAttention(TABLE_WIDTH)(model))


# -- compose-attention


def test_composed_rows_are_in_pool_order(model: ir.Model) -> None:
    run_onnx_passes(model, [*WITHOUT_OUTPUTS, ComposeAttention(TABLE_WIDTH)])
    assert shapes(model) == {
        "input_ids": ("T",),
        "positions": ("T",),
        "block_table": ("B", TABLE_WIDTH),
        "cu_seqlens": ("B+1",),
        "kv_lens": ("B",),
        "logits_rows": ("R",),
        "kv_rows_pool": ("P", 16, 2 * 2 * 2 * 16),
    }
    rows = model.graph.outputs[1]
    assert rows.name == "new_rows"
    sources = [value.producer().inputs[0].name for value in rows.producer().inputs]
    assert sources == [
        f"/layers.{layer}/attn/{name}_output_0"
        for layer in (0, 1)
        for name in ("k_rotary/Rotary", "v_proj/Reshape")
    ]


def test_composing_needs_the_outputs_gone(model: ir.Model) -> None:
    assert "run drop-cache-outputs first" in reason(ComposeAttention(TABLE_WIDTH)(model))


def test_composing_refuses_a_second_reader(model: ir.Model) -> None:
    add_reader(model, "value_cache.0")
    run_onnx_passes(model, WITHOUT_OUTPUTS)
    text = reason(ComposeAttention(TABLE_WIDTH)(model))
    assert "value_cache.0 is not read by /layers.0/attn/KVUpdate alone" in text


def test_no_operator_writes_a_graph_input(model: ir.Model) -> None:
    run_onnx_passes(model, [*WITHOUT_OUTPUTS, ComposeAttention(TABLE_WIDTH), InlineBodies()])
    kinds = {each.op_type for each in model.graph}
    assert not kinds & {"ScatterND", "ScatterElements", "KVUpdate", "Loop", "Scan"}
    assert "Tile" not in kinds  # GE does not infer its shape where an extent is open


@pytest.mark.parametrize("name", CONFIGS)
def test_composed_model_in_stock_onnxruntime(tmp_path: Path, name: str) -> None:
    """The pool is NaN wherever no token was copied: nothing of that may reach a logit."""
    config = CONFIGS[name]
    passes = form_passes(HostForm((), 0, "rows", TABLE_WIDTH))
    model = exported(config)
    run_onnx_passes(model, passes)
    attach_weights(model, Weights(config), "float32")
    save_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    run = Run("oracle", lower(config, HostForm((), 0, "rows", TABLE_WIDTH), 16, tmp_path))
    names = [value.name for value in session.get_inputs()]
    run.executor = _Session(session, names, run.executor)
    for found, wanted in run.steps():
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-4 * np.abs(wanted).max())


class _Session:
    """onnxruntime in the place of an executor."""

    def __init__(self, session: onnxruntime.InferenceSession, names: list[str], like) -> None:
        self.session, self.names = session, names
        self.inputs, self.outputs = like.inputs, like.outputs

    def execute(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> list[tuple]:
        given = {desc.name: array for desc, array in zip(self.inputs, inputs)}
        assert set(given) == set(self.names)
        logits, rows = self.session.run(["logits", "new_rows"], given)
        results = [logits, logits.argmax(-1).astype(np.int32), rows]
        for buffer, result in zip(outputs, results):
            buffer[: result.nbytes] = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
        return [result.shape for result in results]


# -- inline-bodies


def test_bodies_become_named_base_operators(model: ir.Model) -> None:
    result = run_onnx_passes(model, [InlineBodies()])["inline-bodies"]
    assert result.modified == 15
    assert model.functions == {}
    assert set(model.opset_imports) == {""}
    names = {each.name for each in model.graph}
    assert "/layers.1/input_layernorm/RmsNorm/ReduceMean" in names
    assert "/layers.0/mlp/SwiGlu/Sigmoid" in names
    assert not any(each.op_type == "Constant" for each in model.graph)


def test_kept_operators_lose_their_body(model: ir.Model) -> None:
    keep = frozenset({"RmsNorm", "Rotary", "SwiGlu", "KVUpdate"})
    result = run_onnx_passes(model, [InlineBodies(keep)])["inline-bodies"]
    assert result.modified == 2
    assert result.skipped[0].reason == "RmsNorm stays as it is"
    assert {each.op_type for each in model.graph if each.domain == "pagedom"} == keep
    assert model.functions == {}


def test_a_call_without_a_body_is_refused(model: ir.Model) -> None:
    model.functions.clear()
    with pytest.raises(PassError, match="is a RmsNorm, whose body is not in the model"):
        InlineBodies()(model)


# -- seq-ends, fix-dims, add-argmax


def test_lengths_with_another_reader_are_refused(model: ir.Model) -> None:
    add_reader(model, "kv_lens")
    with pytest.raises(PassError, match=r"kv_lens is read by /extra \(Identity\)"):
        SeqEnds()(model)


def test_fixed_dims(model: ir.Model) -> None:
    result = run_onnx_passes(model, [FixDims({"M": 7, "P": 9, "X": 1})])["fix-dims"]
    assert shapes(model)["block_table"] == ("B", 7)
    assert shapes(model)["key_cache.0"] == (9, 16, 2, 16)
    assert [(skip.node, skip.reason) for skip in result.skipped] == [
        ("X", "no shape of the graph has this symbol")
    ]


def test_argmax_stands_behind_the_logits(model: ir.Model) -> None:
    run_onnx_passes(model, [*WITHOUT_OUTPUTS, AddArgmax()])
    assert [value.name for value in model.graph.outputs] == ["logits", "next_ids"]
    assert model.graph.outputs[1].dtype == ir.DataType.INT32
    assert "the outputs are ['logits', 'next_ids']" in reason(AddArgmax()(model))


# -- slot-update


@pytest.mark.parametrize("stacked", [False, True])
def test_slots_stand_at_the_graphs_inputs(stacked: bool) -> None:
    model = exported(LLAMA)
    stack = [StackCaches(NUM_PAGES)] if stacked else []
    run_onnx_passes(model, [*WITHOUT_OUTPUTS, SeqEnds(), *stack, SlotUpdate(NUM_PAGES)])
    slots = NUM_PAGES * 16
    found = shapes(model)
    if stacked:
        assert found["key_pool"] == found["value_pool"] == (2 * slots, 2, 16)
    else:
        assert found["key_cache.1"] == found["value_cache.0"] == (slots, 2, 16)
    for name in found:
        if "cache" in name or "pool" in name:
            assert readers(model, name) == ["SlotUpdate"]  # nothing in between, one reader
    first, second = (node(model, f"/layers.{n}/attn/SlotUpdate") for n in range(2))
    if stacked:
        assert second.inputs[1] is first.outputs[0]
    kinds = [use.node.op_type for use in first.outputs[0].uses()]
    assert kinds == (["Reshape", "SlotUpdate"] if stacked else ["Reshape"])
    pages = node(model, "/layers.1/attn/PagedAttention").inputs[1]
    assert pages is not None
    assert dims(pages) == ((2 if stacked else 1) * NUM_PAGES, 16, 2, 16)


def test_slots_need_the_number_of_pages(model: ir.Model) -> None:
    run_onnx_passes(model, [*WITHOUT_OUTPUTS, SeqEnds()])
    assert "the number of pages is open (P)" in reason(SlotUpdate(0)(model))
    cache = node(model, "/layers.0/attn/KVUpdate").inputs[1]
    assert cache is not None
    cache.shape = ir.Shape(["P", "S", 2, 16])
    assert "must be [P,S,K,D] with S, K, D as numbers" in reason(SlotUpdate(9)(model))


# -- token-attention

LIMITS_310P = token_limits(ASCEND_310P.attention)


def as_tokens(config, kind: str = "float16") -> PassResult:
    model = exported(config, 16, kind)
    passes = [*WITHOUT_OUTPUTS, TokenAttention(TABLE_WIDTH, LIMITS_310P)]
    return run_onnx_passes(model, passes)["token-attention"]


def test_each_token_becomes_a_sequence() -> None:
    model = exported(LLAMA, 16, "float16")
    before = list(shapes(model))
    run_onnx_passes(model, [*WITHOUT_OUTPUTS, TokenAttention(TABLE_WIDTH, LIMITS_310P)])
    swapped = {"cu_seqlens": "token_seqs", "kv_lens": "token_lens"}
    assert list(shapes(model)) == [swapped.get(name, name) for name in before]
    assert shapes(model)["token_lens"] == shapes(model)["token_seqs"] == ("T",)
    assert shapes(model)["block_table"] == ("B", TABLE_WIDTH)
    assert readers(model, "token_lens") == ["TokenAttention"] * 2  # nothing in between
    assert readers(model, "token_seqs") == ["Gather"]  # one for all layers
    names = [each.name for each in model.graph if each.op_type == "TokenAttention"]
    assert names == [f"/layers.{n}/attn/TokenAttention" for n in range(2)]


def test_stacked_tokens_look_up_their_layers_pages() -> None:
    model = exported(LLAMA, 16, "float16")
    passes = [TokenAttention(TABLE_WIDTH, LIMITS_310P), StackCaches(NUM_PAGES)]
    run_onnx_passes(model, [*WITHOUT_OUTPUTS, *passes])
    tables = node(model, "/layers.1/attn/TokenAttention").inputs[3]
    assert tables is not None
    assert dims(tables) == ("T", TABLE_WIDTH)
    made = tables.producer()
    assert made is not None
    assert [value.name for value in made.inputs if value] == [
        "/token_tables/Gather_output_0",
        f"pages.{NUM_PAGES}",
    ]


@pytest.mark.parametrize(
    ("changes", "kind", "wanted"),
    [
        ({}, "float32", "dtype float32: must be float16"),
        ({"windows": (5, -1)}, "float16", "window 5: IncreFlashAttention has no sparse_mode"),
        ({"head_dim": 24}, "float16", "head dim 24: must be a multiple of 16, at most 128"),
        ({"head_dim": 144}, "float16", "head dim 144: must be a multiple of 16, at most 128"),
        ({"num_heads": 33, "num_kv_heads": 1}, "float16", "33 query heads a KV head"),
    ],
)
def test_token_attention_reasons(changes: dict, kind: str, wanted: str) -> None:
    if "head_dim" in changes:
        changes["rope"] = dataclasses.replace(LLAMA.rope, dim=changes["head_dim"])
    config = dataclasses.replace(LLAMA, **changes)
    assert wanted in reason(as_tokens(config, kind))


def test_token_attention_refuses_softcap_and_other_readers() -> None:
    model = exported(LLAMA, 16, "float16")
    attention = node(model, "/layers.0/attn/PagedAttention")
    attention.attributes["softcap"] = ir.AttrFloat32("softcap", 30.0)
    rewrite = TokenAttention(TABLE_WIDTH, LIMITS_310P)
    assert "softcap 30: IncreFlashAttention has no such attribute" in reason(rewrite(model))
    model = exported(LLAMA, 16, "float16")
    add_reader(model, "block_table")
    with pytest.raises(PassError, match=r"block_table is read by /extra \(Identity\)"):
        rewrite(model)


# -- the frame


def test_a_pass_that_leaves_a_broken_model_is_named(model: ir.Model) -> None:
    class Breaker:
        name = "breaker"

        def __call__(self, model: ir.Model) -> PassResult:
            node(model, "/layers.0/Add").name = "/layers.1/Add"
            return PassResult(1)

    with pytest.raises(PassError, match=r"pass breaker left a model that is not sound \(1 problem"):
        run_onnx_passes(model, [Breaker()])


def test_problems_of_a_model(model: ir.Model) -> None:
    first, last = model.graph[0], model.graph[len(model.graph) - 1]
    first.replace_input_with(0, last.outputs[0])
    first.outputs[0].shape = None
    model.opset_imports.pop("pagedom")
    found = "; ".join(model_problems(model))
    assert "which nothing made before" in found
    assert "has no shape or dtype" in found
    assert "domain 'pagedom' of" in found


def test_a_form_without_its_sizes_is_refused() -> None:
    for form in (HostForm(((4, 4), (8, 4)), 0, "inplace", 3), HostForm((), 0, "rows", 0)):
        with pytest.raises(PassError, match="gears need P and M, rows need M"):
            form_passes(form)
    assert NUM_PAGES > TABLE_WIDTH
