"""What compile-model shows while it works: stages, downloads, what was decided."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pagedom.compiler import fetch_stages
from pagedom.compiler.fetch_stages import open_in_stages
from pagedom.compiler.request import CompileOptions, resolve_for
from pagedom.compiler.stages import Stages
from pagedom.models.checkpoint import open_checkpoint
from pagedom.models.errors import CatalogError


@pytest.fixture
def model(tmp_path: Path, toy: Any) -> Path:
    values = toy.config()
    return Path(toy.write_folder(tmp_path / "toy", values, toy.tensors(values)))


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, color_system=None, width=80), text


@pytest.mark.parametrize("terminal", [False, True])
def test_a_download_is_a_stage_in_bytes(
    model: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    def locate(name: str, progress: Any) -> Path:
        assert name == "demo"
        for work, total in (("download llm-demo 1.0", 90_000_000), ("unpack", 98_000_000)):
            progress(work, 0, total)
            progress(work, total, total)
        return model

    monkeypatch.setattr(fetch_stages, "locate", locate)
    shown, text = console(terminal)
    stages = Stages(shown)
    with open_in_stages("demo", stages) as checkpoint:
        assert checkpoint.config.family == "llama"
    names = [record.name for record in stages.records]
    assert names == ["Download llm-demo 1.0", "Unpack", "Open checkpoint"]
    assert "✓ Download llm-demo 1.0" in text.getvalue()
    assert ("90.0 MB of 90.0 MB" in text.getvalue()) is terminal
    assert stages.records[0].note == "90.0 MB"


def test_a_local_model_has_one_stage_and_a_broken_download_none(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = Stages()
    open_in_stages(str(model), stages).close()
    assert [record.name for record in stages.records] == ["Open checkpoint"]

    def locate(_name: str, progress: Any) -> Path:
        progress("download", 1, 2)
        raise CatalogError("no network")

    monkeypatch.setattr(fetch_stages, "locate", locate)
    stages = Stages(console(True)[0])
    with pytest.raises(CatalogError, match="no network"):
        open_in_stages("demo", stages)
    assert stages.records == []


def test_what_is_said_stays_on_one_line() -> None:
    shown, text = console(True)
    with Stages(shown).stage("Compile") as stage:
        stage.say("a tool that says a lot, " * 9)
    assert max(map(len, text.getvalue().replace("\r", "\n").split("\n"))) < 120  # with controls
    assert "a tool that says a lot, " * 3 not in text.getvalue()


def test_what_was_decided_fits_80_columns(model: Path) -> None:
    with open_checkpoint(model) as checkpoint:
        config = checkpoint.config
    shown, text = console(False)
    request = resolve_for(CompileOptions("model", output=Path("out")), config)
    shown.print(request.table())
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    assert len(lines) == len(request.rows())
    assert any(line.endswith(f"for K and V, of {config.head_dim}") for line in lines)
