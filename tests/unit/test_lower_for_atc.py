"""What ATC is given for each chip: the form, shapes, gears, and a graph its parser takes."""

from __future__ import annotations

import pytest
from lowered_model import CONFIGS, LLAMA, Weights, exported

from pagedom.compiler.ascend_lowering import AtcGraph, AtcLowering, lower_for_atc
from pagedom.compiler.attention_form import describe_form
from pagedom.compiler.gear_list import GearError
from pagedom.compiler.lower.infra import PassError
from pagedom.compiler.onnx_gate import GateContext, check_onnx, own_plugin
from pagedom.compiler.onnx_weights import attach_weights
from pagedom.compiler.target_resolve import resolve_target

GEARS = ((16, 4), (64, 4))
CHIPS = ("Ascend910B3", "Ascend910_9382", "Ascend310P3", "Ascend310B1")


def lower(soc: str, gears=GEARS, name: str = "gqa", **options) -> AtcGraph:
    model = exported(CONFIGS[name], 128, "float16")
    return lower_for_atc(model, resolve_target(soc), AtcLowering(32, 64, gears, **options))


@pytest.mark.parametrize("soc", CHIPS)
@pytest.mark.parametrize("gears", [GEARS, GEARS[:1]], ids=["gears", "static"])
def test_the_gate_lets_it_pass(soc: str, gears) -> None:
    name = "gqa" if soc == "Ascend310P3" else "windows"  # its operator has no windows
    graph = lower(soc, gears, name)
    attach_weights(graph.model, Weights(CONFIGS[name]), "float16")
    context = GateContext(
        own_plugin(),
        shapes=graph.shapes,
        gears=graph.gears.gears if graph.gears else None,
        limits=resolve_target(soc).family.gears,
    )
    assert [str(problem) for problem in check_onnx(graph.model, context)] == []


def test_fused_gears() -> None:
    graph = lower("Ascend910B3")
    assert graph.form == "fused"
    assert graph.input_shape == (
        "input_ids:-1;positions:-1;slot_mapping:-1;block_table:-1,32;seq_ends:-1;kv_lens:-1;"
        "logits_rows:-1;key_pool:128,128,2,16;value_pool:128,128,2,16"
    )
    assert graph.dynamic_dims == "16,16,16,4,4,4,4;64,64,64,4,4,4,4"
    assert graph.device_tiling
    assert graph.padding_slot == -1
    assert graph.outputs == {"logits": ("R", 29), "next_ids": ("R",)}
    assert graph.dtypes["kv_lens"] == graph.dtypes["seq_ends"] == "int64"
    lengths = {value.name: value for value in graph.model.graph.inputs}
    for name in ("seq_ends", "kv_lens"):  # value-dependent: nothing stands in front
        assert {use.node.op_type for use in lengths[name].uses()} == {"PagedAttention"}


def test_fused_static_keeps_a_cache_a_layer() -> None:
    graph = lower("Ascend910B3", GEARS[:1])
    assert graph.shapes["key_cache.1"] == (64, 128, 2, 16)
    assert graph.shapes["input_ids"] == (16,)
    assert graph.dynamic_dims is None
    assert graph.outputs == {"logits": (4, 29), "next_ids": (4,)}


def test_range_leaves_dims_open() -> None:
    model = exported(LLAMA, 128, "float16")
    graph = lower_for_atc(model, resolve_target("Ascend910B3"), AtcLowering(32, 0))
    assert "key_cache.0:-1,128,2,16" in graph.input_shape
    assert not graph.device_tiling


def test_old_cann_writes_by_slots() -> None:
    graph = lower("Ascend910B3", cann="8.1.RC1")
    assert graph.padding_slot == 0
    assert graph.shapes["key_pool"] == (2 * 64 * 128, 2, 16)
    assert not any(node.op_type == "KVUpdate" for node in graph.model.graph)


def test_tokens_on_310p() -> None:
    graph = lower("Ascend310P3")
    assert graph.form == "tokens"
    assert graph.input_shape == (
        "input_ids:-1;positions:-1;slot_mapping:-1;block_table:-1,32;token_seqs:-1;token_lens:-1;"
        "logits_rows:-1;key_pool:16384,2,16;value_pool:16384,2,16"
    )
    assert graph.dynamic_dims == "16,16,16,4,16,16,4;64,64,64,4,64,64,4"
    assert graph.device_tiling
    # ScatterPaKvCache has no kernel there, whatever the release.
    kinds = {node.op_type for node in graph.model.graph if node.domain == "pagedom"}
    assert kinds == {"TokenAttention", "SlotUpdate", "RmsNorm", "SwiGlu"}
    assert graph.padding_slot == 0
    assert graph.dtypes["token_lens"] == "int64"
    (lens,) = [value for value in graph.model.graph.inputs if value.name == "token_lens"]
    assert {use.node.op_type for use in lens.uses()} == {"TokenAttention"}


def test_310p_refuses_what_its_operator_cannot() -> None:
    with pytest.raises(PassError, match="window 5: IncreFlashAttention has no sparse_mode"):
        lower("Ascend310P3", name="windows")
    assert lower("Ascend310P3", name="windows", cache_write="rows").form == "composed"


@pytest.mark.parametrize(
    ("soc", "kept", "options"),
    [
        ("Ascend310B1", set(), {}),
        ("Ascend310P3", {"RmsNorm", "SwiGlu"}, {"cache_write": "rows"}),
    ],
)
def test_composed(soc: str, kept: set[str], options: dict) -> None:
    graph = lower(soc, **options)
    assert graph.form == "composed"
    assert {node.op_type for node in graph.model.graph if node.domain == "pagedom"} == kept
    assert graph.padding_slot == -1
    assert graph.shapes["kv_rows_pool"] == (64, 128, 2 * 2 * 2 * 16)
    assert graph.outputs["new_rows"] == ("T", 2 * 2 * 2 * 16)
    assert graph.dynamic_dims == "16,16,4,5,4,4;64,64,4,5,4,4"


def test_composed_on_demand() -> None:
    graph = lower("Ascend910B3", cache_write="rows")
    assert graph.form == "composed"


@pytest.mark.parametrize(
    ("soc", "given", "attention", "write"),
    [
        ("Ascend910B3", {}, "FusedInferAttentionScore, packed", "ScatterPaKvCache; padding writes"),
        (
            "Ascend910B3",
            {"cann": "8.1.RC1"},
            "FusedInferAttentionScore, packed",
            "two ScatterNdUpdate (ScatterPaKvCache needs CANN 8.5.0, this is 8.1.RC1); padding",
        ),
        ("Ascend310P3", {}, "IncreFlashAttention, each token", "two ScatterNdUpdate; padding goes"),
        ("Ascend310B1", {}, "of base operators: Ascend310B1 has none over a paged cache", None),
        ("Ascend910B3", {"cache_write": "rows"}, "of base operators, as asked for", None),
    ],
)
def test_the_form_in_words(soc: str, given: dict, attention: str, write: str | None) -> None:
    words = dict(describe_form(resolve_target(soc), **given))
    assert words.pop("attention").startswith(attention)
    assert [text.startswith(write) for text in words.values()] == ([] if write is None else [True])


def test_operators_without_a_kernel_become_their_bodies() -> None:
    graph = lower("Ascend910B3", lacking=frozenset({"Rotary"}))
    kinds = {node.op_type for node in graph.model.graph if node.domain == "pagedom"}
    assert kinds == {"PagedAttention", "KVUpdate", "RmsNorm", "SwiGlu"}


def test_static_rows_have_numbers_everywhere() -> None:
    graph = lower("Ascend310B1", GEARS[:1])
    assert "-1" not in graph.input_shape
    assert graph.outputs == {"logits": (4, 29), "next_ids": (4,), "new_rows": (16, 128)}


def test_too_many_gears() -> None:
    with pytest.raises(GearError, match="101 gears"):
        lower("Ascend910B3", tuple((16 + n, 4) for n in range(101)))


def test_attributes_for_the_plugin_are_there() -> None:
    graph = lower("Ascend910B3")
    attention = next(n for n in graph.model.graph if n.op_type == "PagedAttention")
    assert attention.attributes["block_size"].as_int() == 128
    assert attention.attributes["num_key_value_heads"].as_int() == 2


def test_an_unfit_model_is_refused() -> None:
    model = exported(LLAMA, 128, "float16")
    attention = next(node for node in model.graph if node.op_type == "PagedAttention")
    attention.replace_input_with(1, attention.inputs[2])
    with pytest.raises(PassError, match="cannot rewrite this model"):
        lower_for_atc(model, resolve_target("Ascend310B1"), AtcLowering(32, 64, GEARS))


def test_slots_of_an_open_pool_are_refused() -> None:
    model = exported(LLAMA, 128, "float16")
    with pytest.raises(PassError, match=r"slot-update cannot rewrite .* number of pages is open"):
        lower_for_atc(model, resolve_target("Ascend310P3"), AtcLowering(32, 0))
