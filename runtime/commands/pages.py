"""`run-om pages`: the page pool as a picture, from a recording."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import click

from .console import note
from .page_recording import FREE, NULL, SHARED, Recording, draw, usage_line

POLL_SECONDS = 0.1

_EPILOG = f"""\b
Examples:
  run-om generate ARTEFACT --file prompts.txt --record pages.jsonl
  run-om pages pages.jsonl
  run-om pages pages.jsonl --step 12
  run-om pages pages.jsonl --follow

\b
{FREE} free   {SHARED} held by several requests   {NULL} the null page, which nobody owns
"""


@click.command(short_help="Draw who owns which page of the KV cache.", epilog=_EPILOG)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--step", type=click.IntRange(min=0), help="Show the pages after this step.")
@click.option("--follow", is_flag=True, help="Redraw as the recording grows, until Ctrl-C.")
def pages(file: Path, step: int | None, follow: bool) -> None:
    """Draw who owns which page in FILE, a recording made with --record.

    Each letter is a request, each cell a page. Without options: the moment with the most pages
    held, and the pages held over time.
    """
    if follow and step is not None:
        raise click.UsageError("--follow shows the newest step: leave --step out.")
    recording = Recording(file)
    width = shutil.get_terminal_size().columns
    if follow:
        follow_recording(recording, width, time.sleep)
        return
    if step is not None:
        click.echo(draw(recording, recording.at(step), width))
        return
    moment = recording.busiest()
    click.echo(draw(recording, moment, width))
    first, last = recording.moments[0].step, recording.moments[-1].step
    click.echo(f"\npages held, steps {first} to {last} (the picture is step {moment.step})")
    click.echo(usage_line(recording, width))


def follow_recording(recording: Recording, width: int, wait: Callable[[float], object]) -> None:
    """Draw the newest moment whenever there is one, for ever; `wait` sleeps and may raise."""
    latest = recording.moments[-1:]
    if not latest:
        note("waiting for the first step …")
    while True:
        if latest:
            click.clear()
            click.echo(draw(recording, latest[-1], width))
        wait(POLL_SECONDS)
        latest = recording.read()
