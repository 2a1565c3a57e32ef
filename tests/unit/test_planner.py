"""The memory ledger against numbers worked by hand and against the tensors' own shapes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_configs import LLAMA_7B, LLAMA_70B
from rich.console import Console

from pagedom.compiler.planner import PlanError, PlanRequest, plan_memory
from pagedom.compiler.target_resolve import resolve_target
from pagedom.compiler.weight_sizes import count_weights, weight_bytes
from pagedom.models.config import ModelConfig
from pagedom.runtime.memory_ledger import pages_of
from pagedom.runtime.memory_report import render_plan
from pagedom.runtime.number_text import size_text

GIB = 1024**3


def config(values: dict) -> ModelConfig:
    return ModelConfig.from_hf(values, name="test-model")


def request(soc: str = "Ascend910B1", **changes: object) -> PlanRequest:
    base = {"dtype": "float16", "page_size": 128, "max_seq_len": 2048, "max_batch": 8}
    return PlanRequest(resolve_target(soc), **{**base, **changes})


def test_llama_7b_worked_example() -> None:
    """LLaMA-7B on a 910B, batch 8, 2048 tokens: the numbers of docs/planning.md."""
    plan = plan_memory(config(LLAMA_7B), request())
    assert plan.parameters == 6_738_415_616
    assert plan.token_bytes == 524_288
    assert plan.page_bytes == 64 * 1024**2
    assert (plan.pages, plan.pages_full) == (128, 128)
    assert round(plan.row("weights").bytes / GIB, 2) == 12.55
    assert plan.contiguous_kv_bytes == 8 * GIB
    assert round(plan.weights_and_contiguous / GIB, 2) == 20.55

    int8 = plan_memory(config(LLAMA_7B), request(weight_dtype="int8", fill=0.44))
    assert round(int8.row("weights").bytes / GIB, 2) == 6.28
    assert round(int8.weights_and_contiguous / GIB, 2) == 14.28
    assert int8.pages == 57  # ceil(0.44 x 128)
    assert round(int8.weights_and_paged / GIB, 1) == 9.8
    small = plan_memory(config(LLAMA_7B), request(weight_dtype="int8", fill=0.44, page_size=16))
    assert round(small.weights_and_paged / GIB, 2) == 9.80


def test_total_is_the_sum_of_the_ledger() -> None:
    plan = plan_memory(config(LLAMA_7B), request())
    assert plan.total_bytes == sum(row.bytes for row in plan.rows)
    assert plan.row("null page").bytes == plan.page_bytes
    assert plan.headroom_bytes == int(64 * GIB * 0.9) - plan.total_bytes
    assert plan.fits is True
    assert plan.advice == ()


def test_number_of_sequences() -> None:
    plan = plan_memory(config(LLAMA_7B), request(mean_len=1000))
    fixed = plan.total_bytes - plan.row("KV pages").bytes
    pages = (plan.usable_bytes - fixed) // plan.page_bytes
    assert plan.capacity.paged_full == pages // 16
    assert plan.capacity.paged_mean == pages // 8  # 1000 tokens take 8 pages
    assert plan.capacity.contiguous == (plan.usable_bytes - fixed) // (2048 * plan.token_bytes)
    assert plan.pages == 8 * 8


def parameter_shapes(c: ModelConfig) -> list[tuple[int, ...]]:
    """Shapes of all tensors of a checkpoint, written from the layer's equations."""
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    layer = [(q, c.hidden_size), (kv, c.hidden_size), (kv, c.hidden_size), (c.hidden_size, q)]
    layer += [(c.intermediate_size, c.hidden_size)] * 2 + [(c.hidden_size, c.intermediate_size)]
    layer += [(c.hidden_size,)] * 2
    layer += [(q,), (kv,), (kv,)] if c.qkv_bias else []
    layer += [(c.hidden_size,)] if c.o_bias else []
    layer += [(c.intermediate_size,)] * 2 + [(c.hidden_size,)] if c.mlp_bias else []
    ends = [(c.vocab_size, c.hidden_size)] * (1 if c.tie_embeddings else 2) + [(c.hidden_size,)]
    return layer * c.num_layers + ends


@settings(max_examples=50, deadline=None)
@given(
    heads=st.sampled_from([(4, 4), (8, 2), (6, 1)]),
    layers=st.integers(1, 5),
    tied=st.booleans(),
    biases=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_parameters_equal_the_shapes(heads, layers, tied, biases) -> None:
    base = config({**LLAMA_7B, "num_hidden_layers": 1})
    c = replace(
        base,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        num_layers=layers,
        windows=(-1,) * layers,
        tie_embeddings=tied,
        qkv_bias=biases[0],
        o_bias=biases[1],
        mlp_bias=biases[2],
    )
    sizes = count_weights(c)
    elements = [1 if len(shape) == 1 else shape[1] for shape in parameter_shapes(c)]
    assert sizes.parameters == sum(n * shape[0] for n, shape in zip(elements, parameter_shapes(c)))
    rows = sum(shape[0] for shape in parameter_shapes(c) if len(shape) == 2)
    assert sizes.matrix_rows == rows
    assert weight_bytes(sizes, "float32", "float32") == 4 * sizes.parameters
    int8 = sizes.matrix_elements + 2 * rows + 2 * sizes.vector_elements
    assert weight_bytes(sizes, "int8", "float16") == int8
    assert weight_bytes(sizes, "int4", "float16") < weight_bytes(sizes, "int8", "float16")


def test_kv_of_grouped_heads_and_other_types() -> None:
    plan = plan_memory(config(LLAMA_70B), request(dtype="bfloat16"))
    assert plan.token_bytes == 2 * 80 * 8 * 128 * 2
    int8 = plan_memory(config(LLAMA_70B), request(dtype="bfloat16", kv_dtype="int8"))
    assert int8.token_bytes * 2 == plan.token_bytes


def test_what_to_change_leads_to_plans_that_fit() -> None:
    model = config(LLAMA_7B)
    crowded = request(max_batch=64)
    plan = plan_memory(model, crowded)
    assert plan.fits is False
    text = "\n".join(plan.advice)
    batch = int(text.split("--max-batch ")[1].split(" ")[0])
    length = int(text.split("--max-seq-len ")[1].split(" ")[0])
    pages = int(text.split("--num-pages ")[1].split(" ")[0]) - 1
    for field, value, limit in (
        ("max_batch", batch, 64),
        ("max_seq_len", length, 2048),
        ("pages", pages, None),
    ):
        assert plan_memory(model, replace(crowded, **{field: value})).fits is True
        if limit is not None and value + 1 < limit:
            step = 128 if field == "max_seq_len" else 1
            assert plan_memory(model, replace(crowded, **{field: value + step})).fits is False
    assert plan_memory(model, replace(crowded, pages=pages + 1)).fits is False


def test_70b_on_one_card_needs_int4_and_fewer_sequences() -> None:
    plan = plan_memory(config(LLAMA_70B), request(dtype="bfloat16", max_batch=16, max_seq_len=8192))
    assert plan.fits is False
    assert any(line.startswith("Weights in int4 and --max-batch") for line in plan.advice)
    assert "131.42 GiB" in "\n".join(plan.advice)


def test_composed_attention_has_gathered_pages_and_scores() -> None:
    fused = plan_memory(config(LLAMA_7B), request())
    composed = plan_memory(config(LLAMA_7B), request("Ascend310B1"))
    assert composed.row("workspace").estimate
    assert composed.row("workspace").bytes > 2 * fused.row("workspace").bytes
    with pytest.raises(KeyError):
        composed.row("causal mask")


def test_gears_add_shape_buffers_and_size_for_the_largest() -> None:
    plain = plan_memory(config(LLAMA_7B), request(step_tokens=64))
    geared = plan_memory(config(LLAMA_7B), request(step_tokens=64, gears=((16, 8), (512, 9))))
    assert geared.row("step inputs").bytes > plain.row("step inputs").bytes + 2 * 1024
    assert "T 512, B 9" in geared.row("step inputs").how


def test_unknown_memory_is_said_and_can_be_given() -> None:
    plan = plan_memory(config(LLAMA_7B), request("Ascend310B4"))
    assert plan.fits is None
    assert plan.capacity.paged_full is None
    assert "--memory" in "".join(text_of(plan).splitlines()[:2])
    given_memory = plan_memory(config(LLAMA_7B), request("Ascend310B4", memory_bytes=64 * GIB))
    assert given_memory.fits is True


def test_host_memory_is_this_machine() -> None:
    plan = plan_memory(config(LLAMA_7B), request("host", page_size=32))
    assert plan.memory_bytes is None or plan.memory_bytes > 2**28


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"page_size": 0}, "page_size 0"),
        ({"max_batch": 0, "max_seq_len": -1}, "max_seq_len -1, max_batch 0"),
        ({"fill": 1.5}, "fill 1.5"),
        ({"fill": 0.5, "mean_len": 10}, "exclude each other"),
        ({"mean_len": 4000}, "at most max_seq_len 2048"),
        ({"utilisation": 0.0}, "utilisation 0.0"),
        ({"dtype": "float17"}, "float17"),
        ({"weight_dtype": "int3"}, "int8 or int4"),
        ({"pages": 0}, "pages 0"),
    ],
)
def test_refusals(changes: dict, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan_memory(config(LLAMA_7B), request(**changes))


@settings(max_examples=100, deadline=None)
@given(tokens=st.integers(1, 10_000), page=st.integers(1, 600))
def test_pages_of(tokens: int, page: int) -> None:
    pages = pages_of(tokens, page)
    assert (pages - 1) * page < tokens <= pages * page
    assert pages_of(tokens - 0.5, page) == pages_of(tokens, page)


def text_of(plan) -> str:
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(render_plan(plan))
    return out.getvalue()


def test_text_and_json() -> None:
    plan = plan_memory(config(LLAMA_7B), request(weight_dtype="int8", fill=0.44))
    text = text_of(plan)
    assert "contiguous 14.28 GiB, paged 9.84 GiB" in text
    assert "[2048, 2048]" in text  # not eaten as markup
    assert max(len(line) for line in text.splitlines()) <= 100
    data = json.loads(json.dumps(plan.to_json()))
    assert data["fits"] is True
    assert data["total_bytes"] == plan.total_bytes


def test_sizes_have_a_unit_that_says_something() -> None:
    for nbytes, text in (
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (-(3 << 20), "-3.00 MiB"),
        (5 << 30, "5.00 GiB"),
    ):
        assert size_text(nbytes) == text
    small = {"num_hidden_layers": 1, "vocab_size": 256, "hidden_size": 128}
    tight = request(max_batch=8, max_seq_len=256, memory_bytes=8 << 20)
    text = text_of(plan_memory(config({**LLAMA_7B, **small}), tight))
    assert "0.00" not in text
    assert "MiB instead of" in text


def test_shape_buffers_are_counted_in_words() -> None:
    for gears, words in ((((512, 9),), "of 1 gear"), (((8, 8), (512, 9)), "of 2 gears")):
        plan = plan_memory(config(LLAMA_7B), request(gears=gears))
        assert plan.row("step inputs").how.endswith(words)


def test_70b_under_a_second_and_100_mb_without_torch(tmp_path) -> None:
    code = """
import json, sys, time
begin = time.perf_counter()
from pagedom.compiler.planner import PlanRequest, plan_memory
from pagedom.compiler.target_resolve import resolve_target
from pagedom.models.config import ModelConfig
from pagedom.runtime.memory_report import render_plan
config = ModelConfig.from_hf(json.loads(sys.argv[1]), name="70b")
plan = plan_memory(config, PlanRequest(resolve_target("Ascend910B1"), "bfloat16", 128, 8192, 16))
render_plan(plan)
seconds = time.perf_counter() - begin
# VmHWM, not ru_maxrss: that one remembers the process that was forked from
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
peak = int(status['VmHWM'].split()[0]) // 1024
heavy = sorted({"torch", "onnx", "onnx_ir", "openvino"} & set(sys.modules))
print(json.dumps([seconds, peak, heavy]))
"""
    command = [sys.executable, "-c", code, json.dumps(LLAMA_70B)]
    runs = []
    for _ in range(3):  # the machine may be busy: the best of three counts
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        seconds, peak_mib, heavy = json.loads(done.stdout)
        assert heavy == []
        assert peak_mib < 100
        runs.append(seconds)
        if seconds < 1.0:
            break
    assert min(runs) < 1.0


def test_the_worked_example_of_the_docs() -> None:
    """docs/planning.md quotes these numbers; both change together."""
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    for weight_dtype, row in ((None, "| float16 | 89 | 44 | 44 |"), ("int8", "| 102 | 51 | 51 |")):
        capacity = plan_memory(config(LLAMA_7B), request(weight_dtype=weight_dtype)).capacity
        numbers = f"| {capacity.paged_mean} | {capacity.paged_full} | {capacity.contiguous} |"
        assert row.endswith(numbers)
        assert row in page
    for number in ("6,738,415,616", "524,288", "20.55 GiB", "14.28 GiB", "9.84 GiB", "9.80 GiB"):
        assert number in page
