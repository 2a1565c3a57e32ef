"""Tables for people on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import RenderableType


def show(*parts: RenderableType) -> None:
    """Write rich renderables to stdout; into a pipe without colours and blanks at line ends."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        for part in parts:
            console.print(part)
        return
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
