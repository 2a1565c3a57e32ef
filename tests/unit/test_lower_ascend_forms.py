"""The forms of chips as GE-IR, executed by the oracle as their operators are documented."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lowered_model import CONFIGS, NUM_PAGES, TABLE_WIDTH, Run, lower_by

from pagedom.compiler.ascend_lowering import AtcLowering, fused_passes, token_passes
from pagedom.compiler.lower.token_attention import TokenLimits

GEARED = AtcLowering(TABLE_WIDTH, NUM_PAGES, ((4, 4), (24, 4)))
STATIC = AtcLowering(TABLE_WIDTH, NUM_PAGES, ((4, 4),))
ANY_FLOAT = TokenLimits(
    ("float32",), 128, 16, 32
)  # the oracle computes what a chip would in float16


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
@pytest.mark.parametrize("options", [GEARED, STATIC], ids=["stacked", "layers"])
def test_tokens(tmp_path: Path, name: str, page_size: int, options: AtcLowering) -> None:
    """310P: prompts, chunks, single tokens and padding through IncreFlashAttention."""
    passes = token_passes(options, ANY_FLOAT)
    path = tmp_path / "m.om"
    lowered = lower_by(passes, CONFIGS[name], page_size, path, "ScatterNdUpdate")
    kinds = [node.type for node in lowered.graph.build.graph.nodes]
    assert kinds.count("IncreFlashAttention") == 2
    assert kinds.count("ScatterNdUpdate") == 4
    for found, wanted in Run("oracle", lowered).steps():
        near(found, wanted)
