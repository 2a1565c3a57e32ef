"""Fixtures of the unit tests: the developers' shared data, and checkpoints made on the spot."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the data folder of PAGEDOM_SHARED or of ../shared, or skip the test."""
    shared = Path(os.environ.get("PAGEDOM_SHARED") or _ROOT.parent / "shared")
    if not (shared / "data").is_dir():
        pytest.skip(f"no shared data at {shared}; set PAGEDOM_SHARED to the folder that has it")
    return shared / "data"


@pytest.fixture(scope="session")
def toy() -> ModuleType:
    """Return the module `toy_checkpoint`, which writes small models in both file formats."""
    import toy_checkpoint

    return toy_checkpoint
