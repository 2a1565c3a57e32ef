"""The forms of chips as GE-IR, executed by the oracle as their operators are documented."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lowered_model import CONFIGS, NUM_PAGES, TABLE_WIDTH, Run, lower_by

from pagedom.compiler.ascend_lowering import AtcLowering, fused_passes, token_passes
from pagedom.compiler.lower.token_attention import TokenLimits
from pagedom.compiler.target_families import ASCEND_310P, ASCEND_910B

GEARED = AtcLowering(TABLE_WIDTH, NUM_PAGES, ((4, 4), (24, 4)))
STATIC = AtcLowering(TABLE_WIDTH, NUM_PAGES, ((4, 4),))
# The oracle computes in the test's float32 what a chip would in float16.
ANY_FLOAT = TokenLimits(("float32",), max_head_dim=128, head_dim_multiple=16, max_group=32)


def near(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("options", [GEARED, STATIC], ids=["stacked", "layers"])
@pytest.mark.parametrize("writer", ["ScatterPaKvCache", "ScatterNdUpdate"])
def test_fused(tmp_path: Path, name: str, options: AtcLowering, writer: str) -> None:
    by_slots = writer == "ScatterNdUpdate"
    passes = fused_passes(options, ASCEND_910B.kernels, by_slots)
    slot = 0 if by_slots else -1
    lowered = lower_by(passes, CONFIGS[name], 16, tmp_path / "m.om", slot)
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
    passes = token_passes(options, ANY_FLOAT, ASCEND_310P.kernels)
    lowered = lower_by(passes, CONFIGS[name], page_size, tmp_path / "m.om", 0)
    kinds = [node.type for node in lowered.graph.build.graph.nodes]
    assert kinds.count("IncreFlashAttention") == 2
    assert kinds.count("ScatterNdUpdate") == 4
    assert "RotaryPositionEmbedding" not in kinds  # no kernel there: its body is inlined
    for found, wanted in Run("oracle", lowered).steps():
        near(found, wanted)
