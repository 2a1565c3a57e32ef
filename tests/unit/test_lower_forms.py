"""Every form of a host artefact, executed, gives the logits of the dense model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lowered_model import CONFIGS, GEARS, NUM_PAGES, TABLE_WIDTH, Run, lower

from pagedom.compiler.host_forms import HostForm

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
