"""Every form of a host artefact, executed, gives the logits of the dense model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lowered_model import CONFIGS, GEARS, NUM_PAGES, TABLE_WIDTH, TRACE, Run, lower

from pagedom.compiler.host_forms import HostForm
from pagedom.runtime.om_file import read_om
from pagedom.runtime.om_file.description import describe_om

FORMS = {
    "plain": HostForm(),
    "gears": HostForm(GEARS, NUM_PAGES, "inplace", TABLE_WIDTH),
    "rows": HostForm((), 0, "rows", TABLE_WIDTH),
    "rows gears": HostForm(GEARS, NUM_PAGES, "rows", TABLE_WIDTH),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("executor", "page_size"),
    [("oracle", 16), ("oracle", 128), ("openvino", 32), ("openvino", 128)],
)
def test_forms(tmp_path: Path, name: str, form: str, executor: str, page_size: int) -> None:
    lowered = lower(CONFIGS[name], FORMS[form], page_size, tmp_path)
    for found, wanted in Run(executor, lowered).steps():
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-4 * np.abs(wanted).max())


@pytest.mark.parametrize(("form", "dims"), [("gears", 7), ("rows gears", 6)])
def test_the_file_says_its_gears_as_atcs_do(tmp_path: Path, form: str, dims: int) -> None:
    """In MODEL_INOUT_INFO, so that other readers of OM files see them."""
    with read_om(lower(CONFIGS["gqa"], FORMS[form], 32, tmp_path).path) as om:
        info = om.models[0].inout_info
    assert info is not None
    assert [gear[0] for gear in info.dynamic_dims] == [tokens for tokens, _ in GEARS]
    assert {len(gear) for gear in info.dynamic_dims} == {dims}
    assert describe_om(tmp_path / "model.om").gears[0].startswith("dims: ")


@pytest.mark.parametrize("form", ["rows", "rows gears"])
@pytest.mark.parametrize("executor", ["oracle", "openvino"])
def test_a_spoilt_sequence_spoils_no_other(tmp_path: Path, form: str, executor: str) -> None:
    """All sequences meet in the composed products: NaN of one must stay its own."""
    lowered = lower(CONFIGS["gqa"], FORMS[form], 32, tmp_path)
    run = Run(executor, lowered)
    run.step(TRACE[0])
    run.caches["kv_rows_pool"][run.scheduler.table[0]] = np.nan  # all pages of sequence a
    for step in TRACE[1:4]:
        found, wanted = run.step(step), run.wanted(step)
        for (name, _), row, right in zip(step, found, wanted):
            if name == "a":
                assert np.isnan(row).all()
            else:
                np.testing.assert_allclose(row, right, rtol=0, atol=2e-4 * np.abs(right).max())


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("executor", ["oracle", "openvino"])
def test_short_types_are_near(tmp_path: Path, kind: str, form: str, executor: str) -> None:
    lowered = lower(CONFIGS["gqa"], FORMS[form], 32, tmp_path, kind)
    for found, wanted in Run(executor, lowered).steps():
        assert np.abs(found - wanted).max() < 0.06 * np.abs(wanted).max()
