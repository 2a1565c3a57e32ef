"""Artefacts that this layer writes once a session."""

from __future__ import annotations

import pytest
from formula_engines import Artefacts


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    """Return the writer of artefacts whose answers are a closed formula."""
    return Artefacts(tmp_path_factory.mktemp("formulas"))
