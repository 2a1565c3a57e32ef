"""Stages of a long command: a progress bar while one runs, a line with time and size after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Advance = Callable[[float], None]


@dataclass(frozen=True)
class StageRecord:
    """What one stage took; seconds, and a note such as a size."""

    name: str
    seconds: float
    note: str


@dataclass
class Stage:
    """A running stage: call `advance` with done work, set `note` for the line at the end."""

    advance: Advance
    note: str = ""


@dataclass
class Stages:
    """Shows stages on a console (None = silent) and remembers them."""

    console: Console | None = None
    records: list[StageRecord] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, total: float | None = None) -> Iterator[Stage]:
        """Run a stage of `total` units of work (None = unknown)."""
        start = time.perf_counter()
        if self.console is None:
            stage = Stage(lambda amount: None)
            yield stage
        else:
            with self._bar(name, total) as advance:
                stage = Stage(advance)
                yield stage
        seconds = time.perf_counter() - start
        self.records.append(StageRecord(name, seconds, stage.note))
        if self.console is not None:
            note = f"  [dim]{stage.note}[/]" if stage.note else ""
            self.console.print(f"[green]✓[/] {name:<28} {seconds:6.1f} s{note}", highlight=False)

    @contextmanager
    def _bar(self, name: str, total: float | None) -> Iterator[Advance]:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description:<28}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%") if total else TextColumn(""),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(name, total=total)
            yield lambda amount: progress.advance(task, amount)


def megabytes(nbytes: int) -> str:
    """Return a size for people, in decimal units."""
    if nbytes >= 10**9:
        return f"{nbytes / 1e9:.2f} GB"
    if nbytes >= 10**6:
        return f"{nbytes / 1e6:.1f} MB"
    return f"{nbytes / 1e3:.1f} kB"
