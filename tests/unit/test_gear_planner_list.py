"""Gear lists: case 7 of the field reports, and what else ATC refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedom.compiler.gear_list import (
    GearError,
    dims_problem,
    dynamic_symbols,
    expand_gear,
    format_gears,
    parse_gears,
)
from pagedom.compiler.target_families import ASCEND_910B, ASCEND_950

LIMITS = ASCEND_910B.gears


def problems(text: str, dims: int = 2) -> tuple[str, ...]:
    with pytest.raises(GearError) as caught:
        parse_gears(text, dims, LIMITS)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_case_7_1_single_gear() -> None:
    (problem,) = problems("16,1")
    assert "'16,1'" in problem
    assert "2 to 100 different gears" in problem
    assert "ATC shape configuration guide" in problem


def test_case_7_2_one_number_missing() -> None:
    (problem,) = problems("16,1;32")
    assert "gear 2 ('32') has 1 value(s)" in problem
    assert "exactly one number for each open dimension (in --gears T,B" in problem
    (expanded, _) = problems("16,1;32", dims=3)
    assert "--gears" not in expanded


def test_case_7_3_minus_one_inside() -> None:
    (problem,) = problems("16,-1;32,2")
    assert "gear 1 ('16,-1') still has a -1" in problem


def test_case_7_4_101_gears() -> None:
    (problem,) = problems(";".join(f"{n},1" for n in range(1, 102)))
    assert "101 gears, the first too many is '101,1'" in problem
    hundred = parse_gears(";".join(f"{n},1" for n in range(1, 101)), 2, LIMITS)
    assert len(hundred.gears) == 100
    wide = parse_gears(";".join(f"{n},1" for n in range(1, 257)), 2, ASCEND_950.gears)
    assert len(wide.gears) == 256


def test_case_7_5_duplicates_leave_a_single_gear() -> None:
    (problem,) = problems("16,1;16,1")
    assert "kept once" in problem
    assert "2 to 100" in problem


def test_duplicates_are_removed_with_a_note() -> None:
    kept = parse_gears("16,1;32,2;16,1", 2, LIMITS)
    assert kept.gears == ((16, 1), (32, 2))
    assert kept.notes == ("gear '16,1' was given 2 times and is kept once",)


def test_valid_list_keeps_its_order() -> None:
    assert parse_gears("64,4;16,1; 32,2;", 2, LIMITS).dynamic_dims == "64,4;16,1;32,2"


def test_all_problems_at_once() -> None:
    found = problems("16;-1,2;3,0;x,1;4,4")
    words = ("'16'", "-1,2", "'0'", "'x'")
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found))


@pytest.mark.parametrize("text", ["", ";", "16,1;;32,2", "1e3,1;2,2", "+4,1;2,2", "٣,1;2,2"])
def test_not_a_list(text: str) -> None:
    assert problems(text)


def test_a_model_without_dynamic_dims_has_no_gears() -> None:
    assert any("no -1 dimension" in text for text in problems("1;2", dims=0))


@given(
    st.lists(st.tuples(st.integers(1, 9999), st.integers(1, 99)), min_size=2, max_size=100).filter(
        lambda gears: len(set(gears)) > 1
    )
)
def test_what_is_written_is_read_back(gears: list[tuple[int, int]]) -> None:
    read = parse_gears(format_gears(gears), 2, LIMITS)
    assert read.gears == tuple(dict.fromkeys(gears))
    assert bool(read.notes) == (len(set(gears)) < len(gears))


def test_gear_in_the_order_of_the_inputs() -> None:
    shapes = {
        "input_ids": ["T"],
        "block_table": ["B", 32],
        "cu_seqlens": ["B+1"],
        "kv_lens": ["B"],
        "logits_rows": ["R"],
        "key_cache.0": [64, 128, 8, 128],
    }
    symbols = dynamic_symbols(shapes)
    assert symbols == ("T", "B", "B+1", "B", "R")
    assert expand_gear((512, 17), symbols) == (512, 17, 18, 17, 17)
    with pytest.raises(GearError, match="'P'"):
        expand_gear((512, 17), ["T", "P"])


def test_dims_of_all_inputs_have_128_places() -> None:
    shapes: dict = {"input_ids": ["T"], "positions": ["T"], "block_table": ["B", 32]}
    caches = {f"key_cache.{layer}": [64, 128, 8, 128] for layer in range(31)}
    assert dims_problem({**shapes, **caches}, LIMITS) is None  # 4 + 124
    caches["key_cache.31"] = [64, 128, 8, 128]
    assert "132 dims" in str(dims_problem({**shapes, **caches}, LIMITS))
