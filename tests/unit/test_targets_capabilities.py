"""The capability matrix: complete, JSON-ready, and readable at 80 columns."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from pagedom.compiler.capabilities import capability_matrix, render_capabilities
from pagedom.compiler.target_resolve import TargetError
from pagedom.compiler.targets import TARGETS


def text_of(matrix: dict) -> str:
    out = io.StringIO()
    Console(file=out, width=80, color_system=None).print(render_capabilities(matrix))
    return out.getvalue()


def test_matrix_names_every_target() -> None:
    matrix = capability_matrix()
    json.dumps(matrix)
    listed = [soc for family in matrix["families"] for soc in family["socs"]]
    assert set(TARGETS) <= set(listed)


def test_text_of_the_matrix_cuts_no_word() -> None:
    text = text_of(capability_matrix())
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    for word in ("FusedInferAttentionScore", "IncreFlashAttention", "ScatterPaKvCache", "bfloat16"):
        assert word in text


@pytest.mark.parametrize("soc", [*TARGETS, "Ascend950PR_9579"])
def test_one_soc_shows_each_fact_with_its_source(soc: str) -> None:
    matrix = capability_matrix(soc)
    json.dumps(matrix)
    assert matrix["soc"] == soc
    assert all(fact["source"] for fact in matrix["facts"])
    text = text_of(matrix)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_unknown_soc() -> None:
    with pytest.raises(TargetError, match="Ascend910B3"):
        capability_matrix("Ascend910B33")
