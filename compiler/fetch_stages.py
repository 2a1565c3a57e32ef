"""Opening a checkpoint, with a stage of its own for the download of a demo."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from ..models.catalog import locate
from ..models.checkpoint import Checkpoint, open_checkpoint
from .stages import Stage, Stages, megabytes


def open_in_stages(model: str, stages: Stages) -> Checkpoint:
    """Open a model's checkpoint; raises ModelError (ConfigError, WeightError, CatalogError)."""
    path = _locate(model, stages)
    with stages.stage("Open checkpoint"):
        return open_checkpoint(path)


def _locate(model: str, stages: Stages) -> Path:
    """Find the model; what is fetched for it is shown in bytes, a stage for each kind of work."""
    running: dict[str, Stage] = {}
    with ExitStack() as stack:

        def show(work: str, done: int, total: int) -> None:
            if work not in running:
                stack.close()
                running.clear()
                running[work] = stack.enter_context(stages.stage(work[:1].upper() + work[1:]))
            stage = running[work]
            stage.show(done, total)
            stage.say(f"{megabytes(done)} of {megabytes(total)}")
            stage.note = megabytes(total)

        return locate(model, show)
