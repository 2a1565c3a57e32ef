"""The exported graph: its documented names and form, for every dtype and kind of model."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pagedom.compiler.export import ExportError, ExportOptions, export_onnx, interface
from pagedom.compiler.onnx_check import check_exported
from pagedom.compiler.onnx_weights import attach_weights
from pagedom.models.config import ModelConfig
from pagedom.models.expected import expected_tensors
from pagedom.models.rope import RopeConfig, cos_sin

CONFIG = ModelConfig(
    family="llama",
    name="tiny",
    vocab_size=11,
    hidden_size=12,
    intermediate_size=20,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rms_norm_eps=1e-4,
    max_positions=64,
    rope=RopeConfig(dim=4),
    tie_embeddings=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    windows=(-1, 6),
    bos_id=None,
    eos_ids=(),
    checkpoint_dtype="float32",
)
BIASED = dataclasses.replace(
    CONFIG, tie_embeddings=False, qkv_bias=True, o_bias=True, mlp_bias=True, num_kv_heads=4
)
OPTIONS = ExportOptions("float32", max_seq_len=32, page_size=4)
LAYER = """input_layernorm/RmsNorm attn/q_proj/MatMul attn/q_proj/Reshape attn/q_rotary/Rotary
    attn/k_proj/MatMul attn/k_proj/Reshape attn/k_rotary/Rotary attn/v_proj/MatMul
    attn/v_proj/Reshape attn/KVUpdate attn/PagedAttention attn/Reshape attn/o_proj/MatMul Add
    post_attention_layernorm/RmsNorm mlp/gate_proj/MatMul mlp/up_proj/MatMul mlp/SwiGlu
    mlp/down_proj/MatMul Add_1"""


class Zeros:
    """A checkpoint in which every tensor is zero."""

    def __init__(self, config: ModelConfig) -> None:
        self.expected = expected_tensors(config)

    def cast(self, name: str, dtype: str) -> np.ndarray:
        return np.zeros(self.expected[name], ir.DataType[_ONNX[dtype]].numpy())


_ONNX = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return export_onnx(CONFIG, OPTIONS)


def by_name(model: ir.Model) -> dict[str, ir.Node]:
    return {str(node.name): node for node in model.graph}


def test_nodes_have_the_documented_names(model: ir.Model) -> None:
    expected = {"/embed_tokens/Gather", "/rope/cos/Gather", "/rope/sin/Gather"}
    expected |= {"/logits_rows/Gather", "/norm/RmsNorm", "/lm_head/Gemm"}
    expected |= {f"/layers.{layer}/{name}" for layer in range(2) for name in LAYER.split()}
    assert set(by_name(model)) == expected
    for node in model.graph:
        for position, value in enumerate(node.outputs):
            if not value.is_graph_output():
                assert value.name == f"{node.name}_output_{position}"


def test_inputs_and_outputs_are_the_contract(model: ir.Model) -> None:
    names = [
        "input_ids",
        "positions",
        "slot_mapping",
        "block_table",
        "cu_seqlens",
        "kv_lens",
        "logits_rows",
    ]
    names += ["key_cache.0", "key_cache.1", "value_cache.0", "value_cache.1"]
    assert [value.name for value in model.graph.inputs] == names
    assert list(interface(CONFIG, OPTIONS)) == names
    shapes = [str(value.shape) for value in model.graph.inputs]
    assert shapes[:7] == ["[T]", "[T]", "[T]", "[B,M]", "[B+1]", "[B]", "[R]"]
    assert set(shapes[7:]) == {"[P,4,2,4]"}
    assert {value.dtype for value in model.graph.inputs[:7]} == {ir.DataType.INT32}
    assert [value.name for value in model.graph.outputs] == [
        "logits",
        "key_cache_out.0",
        "key_cache_out.1",
        "value_cache_out.0",
        "value_cache_out.1",
    ]
    assert str(model.graph.outputs[0].shape) == "[R,11]"


def test_attention_reads_what_the_update_wrote(model: ir.Model) -> None:
    for layer, window in enumerate(CONFIG.windows):
        node = by_name(model)[f"/layers.{layer}/attn/PagedAttention"]
        update = by_name(model)[f"/layers.{layer}/attn/KVUpdate"]
        assert list(node.inputs[1:3]) == list(update.outputs)
        assert update.inputs[1].name == f"key_cache.{layer}"
        attributes = {name: a.value for name, a in node.attributes.items()}
        assert attributes == {"scale": 0.5, "window": window, "softcap": 0.0}
    epsilon = by_name(model)["/norm/RmsNorm"].attributes["epsilon"].as_float()
    assert epsilon == pytest.approx(CONFIG.rms_norm_eps)


def test_nothing_is_left_over(model: ir.Model) -> None:
    assert dict(model.opset_imports) == {"": 18, "pagedom": 1}
    assert {domain for domain, _, _ in model.functions} == {"pagedom"}
    assert len(model.functions) == 5
    assert {node.op_type for node in model.graph if not node.domain} == {
        "Add",
        "Gather",
        "Gemm",
        "MatMul",
        "Reshape",
    }
    for owner in (*model.graph, *model.graph.inputs, *model.graph.outputs):
        assert not owner.metadata_props
    for value in model.graph.initializers.values():
        assert set(value.metadata_props) <= {"pagedom.weight", "pagedom.transposed"}


def test_every_weight_is_a_placeholder_once(model: ir.Model) -> None:
    blanks = {
        name: value for name, value in model.graph.initializers.items() if not value.const_value
    }
    assert set(blanks) == set(expected_tensors(CONFIG))
    for name, value in blanks.items():
        assert value.metadata_props["pagedom.weight"] == name
        shape = [int(size) for size in value.shape]
        turned = value.metadata_props.get("pagedom.transposed") == "1"
        assert turned == ("proj" in name)
        assert tuple(shape[::-1] if turned else shape) == expected_tensors(CONFIG)[name]
    rest = set(model.graph.initializers) - set(blanks)
    assert rest == {"rope.cos", "rope.sin", "shape.Tx4x4", "shape.Tx2x4", "shape.Tx16"}
    cos, sin = cos_sin(CONFIG.rope, 32)
    np.testing.assert_array_equal(model.graph.initializers["rope.cos"].const_value.numpy(), cos)
    np.testing.assert_array_equal(model.graph.initializers["rope.sin"].const_value.numpy(), sin)


def test_untied_head_and_biases() -> None:
    model = export_onnx(BIASED, ExportOptions("float16", 16, 32))
    nodes = by_name(model)
    assert "/lm_head/MatMul" in nodes
    assert nodes["/lm_head/Cast"].outputs[0].name == "logits"
    assert model.graph.initializers["lm_head.weight"].metadata_props["pagedom.transposed"] == "1"
    for name in ("attn/q_proj", "attn/k_proj", "attn/v_proj", "attn/o_proj", "mlp/down_proj"):
        assert f"/layers.1/{name}/Add" in nodes
    blanks = {v.metadata_props.get("pagedom.weight") for v in model.graph.initializers.values()}
    assert blanks - {None} == set(expected_tensors(BIASED))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_checker_accepts_the_whole_model(dtype: str) -> None:
    config = dataclasses.replace(CONFIG, num_layers=1, windows=(-1,))
    model = export_onnx(config, dataclasses.replace(OPTIONS, dtype=dtype))
    attach_weights(model, Zeros(config), dtype)
    onnx.checker.check_model(ir.serde.serialize_model(model), full_check=True)


def test_one_layer_one_head_one_token_page() -> None:
    # Sizes of 1 everywhere must not be taken for facts about T, B, M, P or R.
    config = dataclasses.replace(
        CONFIG, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2, hidden_size=1,
        rope=RopeConfig(dim=2), windows=(1,), intermediate_size=1, vocab_size=1,
    )  # fmt: skip
    model = export_onnx(config, ExportOptions("float32", 1, 1))
    assert str(model.graph.inputs[-1].shape) == "[P,1,1,2]"


def test_progress_counts_up() -> None:
    seen: list[tuple[str, int, int]] = []
    config = dataclasses.replace(CONFIG, num_layers=1, windows=(-1,))
    export_onnx(config, OPTIONS, lambda *step: seen.append(step))
    assert [done for _, done, _ in seen] == [0, 1, 2, 3]
    assert {total for _, _, total in seen} == {3}


def test_options_are_refused_by_name() -> None:
    with pytest.raises(ExportError, match="dtype is 'fp16'; allowed are float32, float16"):
        ExportOptions("fp16")
    with pytest.raises(ExportError, match="page_size is 0; allowed is at least 1"):
        ExportOptions(page_size=0)


def test_check_finds_a_damaged_graph() -> None:
    config = dataclasses.replace(CONFIG, num_layers=1, windows=(-1,))
    model = export_onnx(config, OPTIONS)
    nodes = by_name(model)
    attention = nodes["/layers.0/attn/PagedAttention"]
    attention.replace_input_with(1, model.graph.inputs[7])  # the cache before the update
    nodes["/layers.0/attn/Reshape"].op_type = "Identity"
    nodes["/norm/RmsNorm"].attributes.pop("epsilon")
    problems = "; ".join(check_exported(model, interface(config, OPTIONS)))
    assert "key_cache.0 is read by ['KVUpdate', 'PagedAttention']" in problems
    assert "Identity is not among" in problems
    assert "RmsNorm needs attribute 'epsilon'" in problems
