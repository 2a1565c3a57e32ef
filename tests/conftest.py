"""Makes the helper modules in this folder importable by every test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def worked_example():
    """The four prompts whose numbers tests, docs and tutorial share."""
    from worked_example import WorkedExample

    return WorkedExample()
