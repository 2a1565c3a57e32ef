"""Page-size advice: waste by hand, the rule that decides, and bad length files."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pagedom.compiler.page_advisor import (
    WASTE_LIMIT,
    LengthsError,
    PageAdvice,
    PageRequest,
    advise_pages,
    read_lengths,
)
from pagedom.compiler.page_report import render_page_advice
from pagedom.compiler.target_resolve import resolve_target


@dataclass(frozen=True)
class Model:
    """The part of a ModelConfig that rules look at."""

    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    windows: tuple[int, ...] = (-1,)


def advise(soc: str, lengths: list[int] | None = None, **request: object) -> PageAdvice:
    values = None if lengths is None else np.array(lengths, dtype=np.int64)
    request = {"kv_dtype": "float16", "max_seq_len": 4096, **request}
    return advise_pages(resolve_target(soc), Model(), PageRequest(lengths=values, **request))


def row(advice: PageAdvice, size: int):
    return next(row for row in advice.rows if row.page_size == size)


def test_worked_example() -> None:
    """Prompts of 128, 64, 256, 32 tokens: 30 pages of 16, 5 pages of 128."""
    advice = advise("Ascend910B3", [128, 64, 256, 32])
    assert row(advice, 16).pages * 4 == 30
    assert row(advice, 16).waste == 0
    assert row(advice, 128).pages * 4 == 5
    assert row(advice, 128).waste == pytest.approx(1 - 480 / 640)
    assert row(advice, 128).waste_tokens == pytest.approx(160 / 4)


def test_910b_default_is_the_documented_bound() -> None:
    advice = advise("Ascend910B3")
    assert (advice.recommended, advice.decided_by) == (128, "upper bound")
    assert row(advice, 128).head_bytes == 32 * 1024  # half of a 64 KiB L0B
    assert row(advice, 128).fits_twice is True
    assert row(advice, 256).fits_twice is False
    assert row(advice, 128).page_bytes == 2 * 8 * 32 * 1024
    assert row(advice, 128).table_width == 32
    assert advice.kv_row == 1024
    assert advice.kv_row_limit == 65535


def test_short_sequences_take_a_smaller_page() -> None:
    advice = advise("Ascend910B3", [20, 30, 60])
    assert (advice.recommended, advice.decided_by) == (32, "expected waste")
    assert row(advice, 32).waste == pytest.approx(1 - 110 / 128)
    assert "14%" in advice.why


def test_exactly_full_pages_waste_nothing() -> None:
    advice = advise("Ascend910B3", [128, 256, 1024])
    assert row(advice, 128).waste == 0
    assert advice.recommended == 128


def test_host_takes_one_block() -> None:
    advice = advise("host")
    assert (advice.recommended, advice.decided_by) == (32, "multiple of 32")
    assert row(advice, 32).fits_twice is None


def test_prefix_is_shared_by_whole_pages() -> None:
    advice = advise("Ascend910B3", [500], shared_prefix=100)
    assert [row(advice, size).prefix_reused for size in (16, 32, 64, 128)] == [96, 96, 64, 0]
    assert row(advice, 16).prefix_lost == 7.5


def test_lengths_above_the_limit_are_counted_and_said() -> None:
    advice = advise("Ascend910B3", [5000, 4096, 100])
    assert "1 above max_seq_len, counted as 4096" in advice.distribution
    assert row(advice, 128).pages == pytest.approx((32 + 32 + 1) / 3)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 4096), min_size=1, max_size=30),
    soc=st.sampled_from(["Ascend910B1", "Ascend310P3", "Ascend310B1", "host"]),
)
def test_advice_is_legal_and_waste_is_what_counting_gives(lengths: list[int], soc: str) -> None:
    advice = advise(soc, lengths)
    assert advice.recommended in advice.legal
    for entry in advice.rows:
        taken = sum(-(-length // entry.page_size) * entry.page_size for length in lengths)
        assert entry.waste == pytest.approx(1 - sum(lengths) / taken)
    chosen = row(advice, advice.recommended)
    assert chosen.waste <= WASTE_LIMIT or advice.recommended == advice.rows[0].page_size


def test_text_and_json() -> None:
    out = io.StringIO()
    advice = advise("Ascend910B3", [20, 30, 60])
    Console(file=out, width=80, color_system=None).print(render_page_advice(advice))
    text = out.getvalue()
    lines = [line.rstrip() for line in text.splitlines()]
    heads = next(i for i, line in enumerate(lines) if line.startswith("tokens"))
    assert lines[heads].endswith("lost  2x in L0B")
    shown = lines[heads + 1 : heads + 1 + len(advice.rows)]  # a line each: nothing is wrapped
    assert [int(line.split()[0]) for line in shown] == [each.page_size for each in advice.rows]
    assert "recommended: 32" in text
    assert "set by: expected waste" in text
    assert "K x D: 1024 <= 65535" in text
    assert "…" not in text
    assert json.loads(json.dumps(advice.to_json()))["recommended"] == 32


def test_read_lengths(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("# tokens\n128\n\n 64 # short\n")
    assert read_lengths(file).tolist() == [128, 64]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("12\n-3\n", r"line 2: '-3'"),
        ("0\n", "line 1: '0'"),
        ("1.5\n", "line 1: '1.5'"),
        ("12 13\n", "line 1: '12 13'"),
        ("9" * 40 + "\n", "line 1"),
        ("٣\n", "line 1"),
        ("# nothing\n", "holds no length"),
    ],
)
def test_bad_lengths(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(LengthsError, match=words):
        read_lengths(file)


def test_lengths_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LengthsError, match="cannot read"):
        read_lengths(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LengthsError, match="cannot read"):
        read_lengths(tmp_path / "binary")
