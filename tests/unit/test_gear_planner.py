"""Gears: the dummy's row, the least padding against brute force, bad histograms."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pagedom.compiler.gear_list import GearError
from pagedom.compiler.gear_planner import (
    GearRequest,
    Traffic,
    TrafficError,
    default_traffic,
    plan_gears,
    read_traffic,
)
from pagedom.compiler.gear_report import render_gears
from pagedom.compiler.target_families import ASCEND_910B
from pagedom.runtime.gears import Gear, Gears

LIMITS = ASCEND_910B.gears


def request(max_batch: int = 16, max_tokens: int = 512, **changes: object) -> GearRequest:
    return GearRequest(max_batch, max_tokens, LIMITS, **changes)


def runs_on(gears: tuple[tuple[int, int], ...], tokens: int, seqs: int) -> Gear | None:
    """Return the gear that the runtime takes for a step."""
    return Gears([{"T": t, "B": b} for t, b in gears]).choose(tokens, seqs, seqs)


def traffic(steps: list[tuple[int, int, int]]) -> Traffic:
    table = np.array(steps, dtype=np.int64)
    return Traffic(table[:, 0], table[:, 1], table[:, 2].astype(np.float64), "test")


@pytest.mark.parametrize(
    ("gear", "tokens", "seqs", "fits"),
    [
        ((16, 16), 16, 16, True),  # full: no padding, no dummy
        ((16, 16), 15, 15, True),  # one padding token, the dummy has row 16
        ((16, 16), 1, 1, True),
        ((512, 16), 511, 16, False),  # padding, but no row for the dummy
        ((512, 17), 511, 16, True),
        ((512, 16), 512, 16, True),
        ((16, 16), 17, 1, False),
        ((16, 8), 16, 9, False),
    ],
)
def test_dummy_needs_a_row_when_there_is_padding(gear, tokens, seqs, fits) -> None:
    assert (runs_on((gear,), tokens, seqs) is not None) is fits


def test_decode_gears_need_no_extra_row() -> None:
    assert all(runs_on(((16, 16),), n, n) for n in range(1, 17))


@pytest.mark.parametrize(("batch", "tokens"), [(16, 512), (1, 2), (8, 8), (64, 32), (256, 4096)])
def test_every_step_has_a_gear(batch: int, tokens: int) -> None:
    plan = plan_gears(request(batch, tokens, max_gears=2))
    for t in range(1, tokens + 1, max(1, tokens // 97)):
        for b in {1, min(batch, t) // 2 + 1, min(batch, t)}:
            if b <= min(t, batch):
                assert runs_on(plan.gears, t, b) is not None


def test_default_traffic_gets_a_decode_gear() -> None:
    plan = plan_gears(request())
    assert len(plan.gears) == LIMITS.advised
    assert plan.gears[0] == (16, 16)
    assert plan.gears[-1] == (512, 17)
    assert plan.padding < plan.single_padding / 3
    steps = default_traffic(16, 512)
    assert steps.weight.sum() == pytest.approx(1.0)
    assert sum(use.steps for use in plan.uses) == pytest.approx(1.0)


def test_padding_by_hand() -> None:
    """Steps of 1, 2 and 8 tokens, equally often: gears 2 and 8 pad one token of twelve."""
    steps = traffic([(1, 1, 5), (2, 2, 5), (8, 1, 5)])
    plan = plan_gears(request(2, 8, max_gears=2), steps)
    assert plan.gears == ((2, 2), (8, 3))
    assert plan.padding == pytest.approx(1 / 12)
    assert plan.single_padding == pytest.approx(13 / 24)
    assert [use.padding for use in plan.uses] == [pytest.approx(1 / 4), 0.0]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 50)), min_size=1, max_size=8),
    count=st.integers(2, 4),
)
def test_choice_is_the_best_one(steps: list[tuple[int, int]], count: int) -> None:
    table = traffic([(t, 1, n) for t, n in steps])
    plan = plan_gears(request(4, 16, max_gears=count), table)

    def padded(tops: tuple[int, ...]) -> int:
        return sum(n * min(top for top in tops if top >= t) for t, n in steps)

    inner = sorted({t for t, _ in steps} - {16})
    choices = [
        (*some, 16) for k in range(count) for some in itertools.combinations(inner, min(k, 99))
    ]
    best = min(padded(tops) for tops in choices)
    assert padded(tuple(gear[0] for gear in plan.gears)) == best
    real = sum(t * n for t, n in steps)
    assert plan.padding == pytest.approx(1 - real / best)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 12), st.integers(1, 9)), min_size=1
    ),
    count=st.integers(2, 6),
)
def test_planned_gears_run_every_step_as_planned(steps, count) -> None:
    steps = [(t, min(b, t), n) for t, b, n in steps]
    plan = plan_gears(request(12, 300, max_gears=count), traffic(steps))
    run = 0
    for tokens, seqs, times in steps:
        gear = runs_on(plan.gears, tokens, seqs)
        assert gear is not None
        run += gear.tokens * times
    real = sum(t * n for t, _, n in steps)
    assert plan.padding == pytest.approx(1 - real / run)
    assert 2 <= len(plan.gears) <= count
    assert list(plan.gears) == sorted(set(plan.gears))


def test_steps_of_one_size_still_give_two_gears() -> None:
    plan = plan_gears(request(), traffic([(512, 16, 1)]))
    assert plan.gears == ((16, 1), (512, 17))


def test_size_budget_reduces_the_number() -> None:
    plan = plan_gears(request(max_gears=4, size_budget_bytes=300, bytes_per_gear=100))
    assert len(plan.gears) == 3
    assert plan.extra_bytes == 300
    assert plan.notes == ("the budget of 300 B allows 3 gears instead of 4",)
    with pytest.raises(GearError, match=r"pays for 1 gear of about"):
        plan_gears(request(size_budget_bytes=199, bytes_per_gear=100))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_gears": 1}, "1 gears: must be 2 to 100"),
        ({"max_gears": 101}, "101 gears"),
        ({"max_batch": 0}, "max_batch 0"),
        ({"max_tokens": 1}, "static"),
    ],
)
def test_refusals(changes: dict, words: str) -> None:
    with pytest.raises(GearError, match=words):
        plan_gears(request(**changes))


def test_many_gears_come_with_a_warning() -> None:
    assert "advised" in plan_gears(request(max_gears=9)).notes[0]


def test_traffic_file(tmp_path: Path) -> None:
    file = tmp_path / "steps.txt"
    file.write_text("# tokens sequences count\n8 8 100\n512, 9, 3\n4 4\n")
    steps = read_traffic(file, request())
    assert steps.tokens.tolist() == [8, 512, 4]
    assert steps.weight.tolist() == [100.0, 3.0, 1.0]
    assert plan_gears(request(max_gears=3), steps).gears == ((4, 4), (8, 8), (512, 17))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("8\n", "line 1: '8'"),
        ("8 8 1\n8 x 1\n", "line 2"),
        ("4 8 1\n", "every sequence has a token"),
        ("8 0 1\n", "at least 1"),
        ("600 4 1\n", "more than a step may have"),
        ("20 17 1\n", "more than a step may have"),
        ("\n", "holds no step"),
    ],
)
def test_bad_traffic(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "steps.txt"
    file.write_text(content)
    with pytest.raises(TrafficError, match=words):
        read_traffic(file, request())


def test_traffic_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "steps.bin"
    file.write_bytes(b"8 4\n\x93NUMPY")
    words = r"steps\.bin: it is no UTF-8 text \(byte 4\); write 'tokens sequences \[count\]'"
    with pytest.raises(TrafficError, match=words) as caught:
        read_traffic(file, request())
    assert "codec" not in str(caught.value)
    with pytest.raises(TrafficError, match=r"no-such: No such file"):
        read_traffic(tmp_path / "no-such", request())


def test_text_and_json() -> None:
    plan = plan_gears(request())
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(render_gears(plan))
    assert "expected padding:" in out.getvalue()
    assert "dummy sequence" in out.getvalue()
    assert json.loads(json.dumps(plan.to_json()))["gears"][0] == [16, 16]


def test_the_table_of_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    for count in (2, 4):
        plan = plan_gears(request(max_gears=count))
        listed = ", ".join(f"{tokens}x{rows}" for tokens, rows in plan.gears)
        assert f"| {listed} | {100 * plan.padding:.1f} % |" in page
    assert f"| one static shape | {100 * plan.single_padding:.1f} % |" in page
