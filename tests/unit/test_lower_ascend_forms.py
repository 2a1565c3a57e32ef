"""The forms of chips as GE-IR, executed by the oracle as their operators are documented."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lowered_model import CONFIGS, NUM_PAGES, TABLE_WIDTH, TRACE, Run, lower_by

from pagedom.compiler.ascend_lowering import (
    AtcLowering,
    decode_passes,
    fused_passes,
    prefill_passes,
)
from pagedom.compiler.lower.decode_step import DecodeLimits, DecodeStep
from pagedom.compiler.lower.onnx_infra import OnnxPass

GEARED = AtcLowering(TABLE_WIDTH, NUM_PAGES, ((4, 4), (24, 4)))
STATIC = AtcLowering(TABLE_WIDTH, NUM_PAGES, ((4, 4),))
ANY_FLOAT = DecodeLimits(dtypes=("float32",))  # the oracle computes what a chip would in float16


def in_float32(passes: list[OnnxPass]) -> list[OnnxPass]:
    """Let the decode pass take the test's float32."""
    return [DecodeStep(ANY_FLOAT) if isinstance(p, DecodeStep) else p for p in passes]


def near(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("options", [GEARED, STATIC], ids=["stacked", "layers"])
@pytest.mark.parametrize("writer", ["ScatterPaKvCache", "ScatterNdUpdate"])
def test_fused(tmp_path: Path, name: str, options: AtcLowering, writer: str) -> None:
    passes = fused_passes(options)
    lowered = lower_by(passes, CONFIGS[name], 16, tmp_path / "m.om", writer)
    kinds = [node.type for node in lowered.graph.build.graph.nodes]
    assert kinds.count(writer) == (2 if writer == "ScatterPaKvCache" else 4)
    assert kinds.count("FusedInferAttentionScore") == 2
    for found, wanted in Run("oracle", lowered).steps():
        near(found, wanted)


@pytest.mark.parametrize("name", ["gqa", "mha"])
@pytest.mark.parametrize("page_size", [16, 128])
def test_310p_prefill_and_decode_share_a_cache(tmp_path: Path, name: str, page_size: int) -> None:
    """Two graphs take turns on one cache: composed for prompts, IncreFlashAttention for tokens."""
    config, writer = CONFIGS[name], "ScatterNdUpdate"
    passes = {"prefill": prefill_passes(GEARED), "decode": in_float32(decode_passes(GEARED))}
    runs = {
        phase: Run("oracle", lower_by(each, config, page_size, tmp_path / f"{phase}.om", writer))
        for phase, each in passes.items()
    }
    prefill, decode = runs["prefill"], runs["decode"]
    decode.caches, decode.lengths = prefill.caches, prefill.lengths
    # One cache of two executors: the second must not take it for a new one and poison it.
    decode.executor._seen_caches = prefill.executor._seen_caches
    kinds = {node.type for node in decode.lowered.graph.build.graph.nodes}
    assert "IncreFlashAttention" in kinds
    for step in TRACE:
        alone = all(count == 1 for _, count in step)
        run = decode if alone else prefill
        near(run.step(step), run.wanted(step))


def test_310p_prefill_with_windows(tmp_path: Path) -> None:
    passes = prefill_passes(GEARED)
    path, writer = tmp_path / "m.om", "ScatterNdUpdate"
    for found, wanted in Run(
        "oracle", lower_by(passes, CONFIGS["windows"], 16, path, writer)
    ).steps():
        near(found, wanted)
