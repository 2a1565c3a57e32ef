"""The capability matrix: complete, JSON-ready, and readable at 80 columns."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from pagedom.compiler.capabilities import capability_matrix, render_capabilities
from pagedom.compiler.target_families import FAMILIES
from pagedom.compiler.target_resolve import TargetError
from pagedom.compiler.target_rules import version_key
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


def test_a_fallback_is_offered_where_a_release_may_need_it() -> None:
    """A release that a chip cannot use needs no way around what it lacks."""
    for family in FAMILIES:
        write = family.cache_write
        known = [row.min_cann for row in family.features if row.min_cann]
        if write.fallback and family.name != "host":
            assert version_key(max(known, key=version_key)) < version_key(write.min_cann)
    text = text_of(capability_matrix())
    assert text.count("else two ScatterNdUpdate") == 1  # 910B, from CANN 8.1 on
    for soc in ("Ascend910_9391", "Ascend950PR_9579"):
        assert "ScatterNdUpdate" not in text_of(capability_matrix(soc))


@pytest.mark.parametrize("soc", [*TARGETS, "Ascend950PR_9579"])
def test_a_multiple_of_one_is_no_row(soc: str) -> None:
    shown = {fact["name"]: fact["value"] for fact in capability_matrix(soc)["facts"]}
    assert shown.get("head_dim is a multiple of") != 1
    assert shown.get("block-table row") != "multiple of 1 int32"
    assert ("block-table row" in shown) == (soc != "host")


def test_unknown_soc() -> None:
    with pytest.raises(TargetError, match="Ascend910B3"):
        capability_matrix("Ascend910B33")
