"""Stages of a long command: a progress bar while one runs, a line with time and size after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.markup import escape

if TYPE_CHECKING:
    from rich.console import Console

Show = Callable[[float, float], None]  # work done, work in all
Say = Callable[[str], None]  # what is going on


@dataclass(frozen=True)
class StageRecord:
    """What one stage took; seconds, and a note such as a size."""

    name: str
    seconds: float
    note: str


@dataclass
class Stage:
    """A running stage: call `show` with (done, all), `say` with a line of a tool's output.

    `note` is for the line at the end.
    """

    show: Show = lambda done, total: None
    say: Say = lambda text: None
    note: str = ""


@dataclass
class Stages:
    """Shows stages on a console (None = silent) and remembers them.

    `check` is called before and after each stage and may raise, for an interrupt that got lost.
    """

    console: Console | None = None
    records: list[StageRecord] = field(default_factory=list)
    check: Callable[[], None] = lambda: None

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Run a stage; until its work is shown, how much there is counts as unknown."""
        self.check()
        start = time.perf_counter()
        if self.console is None or not self.console.is_terminal:
            stage = Stage()
            yield stage
        else:
            with _bar(self.console, name) as (show, say):
                stage = Stage(show, say)
                yield stage
        self.check()
        seconds = time.perf_counter() - start
        self.records.append(StageRecord(name, seconds, stage.note))
        if self.console is not None:
            note = f"  [dim]{escape(stage.note)}[/]" if stage.note else ""
            self.console.print(
                f"[green]✓[/] {escape(name):<28} {seconds:6.1f} s{note}", highlight=False
            )


@contextmanager
def _bar(console: Console, name: str) -> Iterator[tuple[Show, Say]]:
    """Show a bar that vanishes at the end."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)  # one line, whatever is said
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<28}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[said]}", markup=False, style="dim", table_column=rest),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        task = progress.add_task(name, total=None, said="")

        def say(text: str) -> None:
            line = " ".join(text.split())
            if line:
                progress.update(task, said=line)

        yield lambda done, total: progress.update(task, completed=done, total=total), say


def megabytes(nbytes: int) -> str:
    """Return a size for people, in decimal units."""
    if nbytes >= 10**9:
        return f"{nbytes / 1e9:.2f} GB"
    if nbytes >= 10**6:
        return f"{nbytes / 1e6:.1f} MB"
    return f"{nbytes / 1e3:.1f} kB"
