"""Targets and refusals: each rule with its number, its source and what it advises."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedom.compiler.combination import Combination, CombinationError, CombinationOptions
from pagedom.compiler.page_rules import (
    PageContext,
    legal_page_sizes,
    nearest_legal,
    page_rules,
    recommended_page_size,
)
from pagedom.compiler.target_cautions import cautions, wanted_release
from pagedom.compiler.target_families import FAMILIES
from pagedom.compiler.target_records import Limit
from pagedom.compiler.target_resolve import resolve_target
from pagedom.compiler.target_rules import (
    check_combination,
    require_combination,
    version_key,
)
from pagedom.compiler.targets import TARGETS, match_950


@dataclass(frozen=True)
class Model:
    """The part of a ModelConfig that rules look at."""

    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    windows: tuple[int, ...] = (-1, -1)


LLAMA = Model()
MULTI_HEAD = Model(num_kv_heads=32)


def rules_broken(soc: str, model: Model, dtype: str, page: int, batch: int = 8, **options) -> list:
    target = resolve_target(soc)
    found = check_combination(target, model, dtype, page, batch, CombinationOptions(**options))
    return [violation.rule for violation in found]


def test_style_guide_sentence() -> None:
    found = check_combination(resolve_target("Ascend910B3"), LLAMA, "float16", 40, 8)
    assert len(found) == 1
    text = str(found[0])
    assert text.startswith("page_size 40 is not legal on Ascend910B3 for prefill and decode")
    assert "must be a multiple of 16, at most 512" in text
    assert "FusedInferAttentionScore" in text
    assert text.endswith("Nearest legal: 32, 48; recommended: 128.")


@pytest.mark.parametrize(
    ("soc", "dtype", "page"),
    [
        ("Ascend910B1", "float16", 128),
        ("Ascend910B4", "bfloat16", 16),
        ("Ascend910_9391", "bfloat16", 128),
        ("Ascend950PR_9579", "bfloat16", 128),
        ("Ascend310P3", "float16", 128),
        ("Ascend310B4", "float16", 64),
        ("host", "float32", 32),
        ("host", "bfloat16", 96),
    ],
)
def test_working_combinations(soc: str, dtype: str, page: int) -> None:
    assert rules_broken(soc, LLAMA, dtype, page) == []


@pytest.mark.parametrize("soc", ["Ascend310P1", "Ascend310P3", "Ascend310P5", "Ascend310P7"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_310p_is_fp16_only(soc: str, dtype: str) -> None:
    assert "dtype" in rules_broken(soc, LLAMA, dtype, 128)
    assert "dtype" in rules_broken(soc, LLAMA, dtype, 128, attention="composed")


def test_all_violations_at_once() -> None:
    model = Model(num_heads=30, num_kv_heads=8, head_dim=300)
    broken = rules_broken("Ascend910B3", model, "float32", 40, batch=70000)
    assert {"dtype", "heads", "batch-limit", "head-dim-limit", "page-prefill"} <= set(broken)


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (Model(num_heads=512, num_kv_heads=512, head_dim=128), "kv-row"),  # 65536 > 65535
        (Model(num_heads=257, num_kv_heads=1), "heads-limit"),
        (Model(head_dim=512), "head-dim-limit"),
    ],
)
def test_fused_limits(model: Model, rule: str) -> None:
    assert rule in rules_broken("Ascend910B2", model, "float16", 128)
    assert rule not in rules_broken("Ascend910B2", model, "float16", 128, attention="composed")


@pytest.mark.parametrize(
    ("model", "batch", "length", "rule"),
    [
        (Model(), 257, 2048, "batch-limit"),
        (Model(), 256, 65537, "kv-length"),
        (Model(head_dim=100), 8, 2048, "head-dim-multiple"),
        (Model(num_heads=33, num_kv_heads=1), 8, 2048, "group-limit"),
        (Model(head_dim=144), 8, 2048, "head-dim-limit"),
        (Model(windows=(-1, 4096)), 8, 2048, "window"),
    ],
)
def test_310p_limits(model: Model, batch: int, length: int, rule: str) -> None:
    broken = rules_broken("Ascend310P3", model, "float16", 128, batch, max_seq_len=length)
    assert broken == [rule]


def test_310b_has_no_ranges_and_no_in_place_cache() -> None:
    options = {"shapes": "range", "cache_write": "inplace"}
    assert rules_broken("Ascend310B1", LLAMA, "float16", 128, **options) == [
        "range-shapes",
        "cache-write",
    ]
    assert rules_broken("Ascend910B1", LLAMA, "float16", 128, **options) == []
    assert rules_broken("Ascend310B1", LLAMA, "float16", 128, shapes="gears") == []


def test_minimum_cann() -> None:
    assert rules_broken("Ascend950PR_1234", LLAMA, "float16", 128, cann="8.5.0") == ["min-cann"] * 2
    assert rules_broken("Ascend950PR_1234", LLAMA, "float16", 128, cann="9.1.0") == []
    assert rules_broken("Ascend910B1", LLAMA, "float16", 128, cann="8.1.RC1") == []
    assert rules_broken("Ascend910B1", LLAMA, "float16", 128, cann="7.0.0") == ["min-cann"]


@pytest.mark.parametrize(
    ("version", "key"),
    [("8.1.RC1", (8, 1)), ("9.0.0", (9,)), ("8.5.0.alpha001", (8, 5)), ("7.2.1", (7, 2, 1))],
)
def test_version_key(version: str, key: tuple[int, ...]) -> None:
    assert version_key(version) == key


def test_host_page_sizes_depend_on_the_executor() -> None:
    assert rules_broken("host", LLAMA, "float32", 16) == ["page-openvino"]
    assert rules_broken("host", LLAMA, "float32", 16, executor="oracle") == []
    assert rules_broken("host", LLAMA, "float32", 0, executor="oracle") != []


def test_pages_of_a_layer_are_128_byte_aligned() -> None:
    small = Model(num_heads=2, num_kv_heads=1, head_dim=2)  # a token of K is 8 bytes in float32
    assert rules_broken("host", small, "float32", 4, executor="oracle") == ["page-bytes"]
    assert rules_broken("host", small, "float32", 16, executor="oracle") == []


@pytest.mark.parametrize(
    ("soc", "head_dim", "kv_dtype", "legal"),
    [
        ("Ascend910B1", 128, "float16", range(16, 513, 16)),
        ("Ascend910B1", 64, "bfloat16", range(16, 513, 16)),
        ("Ascend910B1", 96, "float16", range(128, 513, 128)),  # prefill wants multiples of 128
        ("Ascend910B1", 128, "int8", range(32, 513, 32)),
        ("Ascend310P1", 128, "float16", range(16, 513, 16)),
        ("host", 128, "float32", range(32, 1025, 32)),
    ],
)
def test_legal_page_sizes(soc: str, head_dim: int, kv_dtype: str, legal: range) -> None:
    context = PageContext(resolve_target(soc), Model(head_dim=head_dim), kv_dtype)
    assert legal_page_sizes(context) == tuple(legal)


def test_sizes_that_only_the_code_accepts_are_a_caution() -> None:
    at_doc = Combination(resolve_target("Ascend910B1"), LLAMA, "float16", 128, 8)
    assert cautions(at_doc) == []
    beyond = replace(at_doc, page_size=256)
    require_combination(beyond)
    (caution,) = cautions(beyond)
    assert "at most 128" in str(caution)


@pytest.mark.parametrize(
    ("soc", "model", "cann", "doubted", "wanted"),
    [
        ("Ascend910B3", LLAMA, "8.5.0", [], "8.5.0"),
        ("Ascend910B3", LLAMA, "8.3.RC1", ["from 8.5.0 on"], "8.5.0"),
        ("Ascend910B3", MULTI_HEAD, "8.5.0", ["from 9.0.0 on"], "9.0.0"),
        ("Ascend910B3", MULTI_HEAD, "9.0.0", [], "9.0.0"),
        (
            "Ascend910B3",
            Model(windows=(4096, -1)),
            "8.3.RC1",
            ["from 8.5.0 on", "from 9.0.0 on"],
            "9.0.0",
        ),
        ("Ascend910_9391", LLAMA, "9.0.0", [], "9.0.0"),
        ("Ascend950PR_9579", LLAMA, "9.1.0", [], "9.1.0"),
        ("Ascend310P3", MULTI_HEAD, "8.1.RC1", [], "8.1"),
        ("Ascend310P3", LLAMA, "8.1.RC1", ["from 8.3 on"], "8.3"),
        ("Ascend310P3", LLAMA, "8.3.RC1", [], "8.3"),
        (
            "Ascend310P3",
            LLAMA,
            "8.5.0",
            ["before 8.5.0 and from 9.0.0 on", "before 8.5.0"],
            "8.3",
        ),
        ("Ascend310P3", LLAMA, "9.1.0", ["before 8.5.0"], "8.3"),
        ("Ascend310B4", LLAMA, "8.1.RC1", [], ""),
    ],
)
def test_releases_that_a_source_doubts(
    soc: str, model: Model, cann: str, doubted: list[str], wanted: str
) -> None:
    options = CombinationOptions(cann=cann)
    asked = Combination(resolve_target(soc), model, "float16", 128, 8, options)
    require_combination(asked)
    releases = [row for row in cautions(asked) if row.rule == "release"]
    assert [row.allowed.removeprefix("known ") for row in releases] == doubted
    assert wanted_release(asked) == wanted
    composed = replace(asked, options=replace(options, attention="composed"))
    assert cautions(composed) == []


def test_what_310ps_tiling_divides_by() -> None:
    """Pages must fit the inner block of grouped heads, 128 * floor(80 / group) tokens."""
    for heads, largest in ((8, 512), (8 * 21, 384), (8 * 32, 256)):
        context = PageContext(resolve_target("Ascend310P3"), Model(num_heads=heads), "float16")
        assert legal_page_sizes(context)[-1] == largest
        assert recommended_page_size(context) == 128


def test_the_whole_row_of_a_table_counts_on_310p() -> None:
    """65530 tokens fit, but not the row of 1376 pages of 48 that holds them."""
    for page, length, broken in ((128, 65536, []), (48, 65530, ["kv-length"])):
        found = rules_broken("Ascend310P3", LLAMA, "float16", page, max_seq_len=length)
        assert found == broken


def test_require_combination_lists_all_reasons() -> None:
    bad = Combination(resolve_target("Ascend310P3"), LLAMA, "bfloat16", 40, 8)
    with pytest.raises(CombinationError) as caught:
        require_combination(bad)
    assert [row.rule for row in caught.value.violations] == ["dtype", "page-incre"]
    assert str(caught.value).count("\n") == 1


@settings(max_examples=200, deadline=None)
@given(
    soc=st.sampled_from([*TARGETS, "Ascend950DT_ab12"]),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    head_dim=st.sampled_from([16, 64, 80, 96, 128, 256]),
    page=st.integers(-3, 1200),
)
def test_violation_exactly_when_outside_the_legal_set(
    soc: str, kv_heads: int, head_dim: int, page: int
) -> None:
    model = Model(num_heads=8, num_kv_heads=kv_heads, head_dim=head_dim)
    context = PageContext(resolve_target(soc), model, "float16")
    legal = legal_page_sizes(context)
    broken = [rule for rule in rules_broken(soc, model, "float16", page) if rule.startswith("page")]
    if page <= 1024:
        assert (page in legal) == (broken == [])
    for size in nearest_legal(context, page):
        assert all(rule.allows(size) for rule in page_rules(context))
    assert recommended_page_size(context) in legal


def test_every_limit_names_its_source() -> None:
    def walk(record: object) -> None:
        if isinstance(record, Limit):
            assert record.source, record
        if is_dataclass(record):
            for field in fields(record):
                value = getattr(record, field.name)
                if field.name.endswith("source"):
                    assert value, (record, field.name)
                for item in value if isinstance(value, tuple) else (value,):
                    walk(item)

    for target in (*TARGETS.values(), match_950("Ascend950PR_9579")):
        walk(target)
    assert {target.family for target in TARGETS.values()} <= set(FAMILIES)


def test_real_numbers() -> None:
    gib = 1024**3
    assert TARGETS["Ascend910B3"].memory_bytes.value == 64 * gib
    assert TARGETS["Ascend910B3"].ai_cores.value == 20
    assert TARGETS["Ascend910B4"].memory_bytes.value == 32 * gib
    assert TARGETS["Ascend310P1"].ai_cores.value == 10
    assert TARGETS["Ascend310B4"].memory_bytes.value is None  # blank in CANN: the user says it
    assert "confirm" in TARGETS["Ascend310B4"].memory_bytes.source
    assert TARGETS["Ascend910B1"].family.gears.maximum == 100
    assert resolve_target("Ascend950PR_9579").family.gears.maximum == 256
