"""Fixtures of every layer; makes the helper modules in this folder importable."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def worked_example():
    """The four prompts whose numbers tests, docs and tutorial share."""
    from worked_example import WorkedExample

    return WorkedExample()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the data folder of PAGEDOM_SHARED or of ../shared, or skip the test."""
    shared = Path(
        os.environ.get("PAGEDOM_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    )
    if not (shared / "data").is_dir():
        pytest.skip(f"no shared data at {shared}; set PAGEDOM_SHARED to the folder that has it")
    return shared / "data"


@pytest.fixture(scope="session")
def toy() -> ModuleType:
    """Return the module `toy_checkpoint`, which writes small models in both file formats."""
    import toy_checkpoint

    return toy_checkpoint
