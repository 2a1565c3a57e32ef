"""Reads a recording of page owners (written by `page_trace`) and draws one moment of it.

step 3 · 7 of 11 pages held (64 %), 1 shared · 2 requests · pages of 16 tokens
   0 #AAAB+BB....
A request 0: 4 pages   B request 1: 4 pages
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

FORMAT = 1
NULL, FREE, SHARED = "#", ".", "+"

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_COLORS = ("red", "green", "yellow", "blue", "magenta", "cyan")
_BARS = "▁▂▃▄▅▆▇█"


class RecordingError(ValueError):
    """A file that is no recording of pages."""


@dataclass(frozen=True)
class Moment:
    """Who held which pages after a step: request id -> page ids."""

    step: int
    held: Mapping[int, Sequence[int]]

    @property
    def num_held(self) -> int:
        """Distinct pages that somebody holds."""
        return len({page for pages in self.held.values() for page in pages})


class Recording:
    """A recording that may still grow: each call of `read` takes the complete new lines."""

    def __init__(self, path: Path) -> None:
        """Open the file and read its header; raises RecordingError."""
        self.path = path
        self._offset = 0
        self._held: dict[int, list[int]] = {}
        lines = self._new_lines()
        header = next(lines, None)
        if header is None or header.get("format") != FORMAT:
            raise RecordingError(
                f"{path} is no page recording of format {FORMAT}: make one with "
                "`run-om generate ARTEFACT --record FILE`"
            )
        self.num_pages = int(header["num_pages"])
        self.page_size = int(header["page_size"])
        self.moments = [self._apply(line) for line in lines]

    def read(self) -> list[Moment]:
        """Return the moments that were added since the last look."""
        fresh = [self._apply(line) for line in self._new_lines()]
        self.moments += fresh
        return fresh

    def at(self, step: int) -> Moment:
        """Return the moment after a step; raises RecordingError outside the recording."""
        before = [moment for moment in self.moments if moment.step <= step]
        if not before or step > self.moments[-1].step:
            raise RecordingError(f"step {step} is not in {self.path}: it has {self._extent()}")
        return Moment(step, before[-1].held)

    def busiest(self) -> Moment:
        """Return the first moment with the most pages held."""
        if not self.moments:
            raise RecordingError(f"{self.path} has no steps yet; --follow waits for them")
        return max(self.moments, key=lambda moment: moment.num_held)

    def _extent(self) -> str:
        if not self.moments:
            return "no steps yet"
        return f"steps {self.moments[0].step} to {self.moments[-1].step}"

    def _apply(self, line: Mapping[str, Any]) -> Moment:
        self._held.update({int(key): pages for key, pages in line["held"].items()})
        for request in line["gone"]:
            self._held.pop(request, None)
        return Moment(int(line["step"]), dict(self._held))

    def _new_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the complete lines after the offset; the engine may be writing the last one."""
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                try:
                    parsed = json.loads(line)
                except ValueError:
                    parsed = None
                if not isinstance(parsed, dict):
                    raise RecordingError(
                        f"{self.path} is no page recording: line {number + 1} is not a JSON object"
                    )
                yield parsed


def draw(recording: Recording, moment: Moment, width: int) -> str:
    """Return the picture of a moment, at most `width` columns wide, with ANSI colours."""
    holders = Counter(page for pages in moment.held.values() for page in pages)
    cells = [FREE] * recording.num_pages
    cells[0] = click.style(NULL, dim=True)
    for request, pages in moment.held.items():
        for page in pages:
            cells[page] = SHARED if holders[page] > 1 else _mark(request)
    usable = recording.num_pages - 1
    shared = sum(count > 1 for count in holders.values())
    head = (
        f"step {moment.step} · {len(holders)} of {usable} pages held "
        f"({100 * len(holders) / max(1, usable):.0f} %)"
        + (f", {shared} shared" if shared else "")
        + f" · {len(moment.held)} requests · pages of {recording.page_size} tokens"
    )
    margin = len(str(recording.num_pages))
    columns = max(8, (width - margin - 1) // 8 * 8)
    rows = _rows(cells, columns, margin)
    legend = [
        f"{_mark(request)} request {request}: {len(pages)} pages"
        for request, pages in sorted(moment.held.items())
    ]
    return "\n".join([head, "", *rows, "", *_wrap(legend, width)])


def _rows(cells: Sequence[str], columns: int, margin: int) -> list[str]:
    """Return numbered rows of cells; a run of two or more rows of free pages becomes one line."""
    rows: list[str] = []
    free: list[str] = []
    for start in range(0, len(cells) + columns, columns):
        row = "".join(cells[start : start + columns])
        numbered = f"{start:>{margin}} {row}"
        if row and not row.strip(FREE):
            free.append(numbered)
            continue
        rows += free if len(free) < 2 else [f"{'':>{margin}} … {len(free)} rows of free pages"]
        free = []
        rows += [numbered] if row else []
    return rows


def usage_line(recording: Recording, width: int) -> str:
    """Return the pages held over time as a line of bars; each bar is the peak of its steps."""
    counts = [moment.num_held for moment in recording.moments]
    size = max(1, -(-len(counts) // max(1, width)))
    peaks = [max(counts[start : start + size]) for start in range(0, len(counts), size)]
    usable = max(1, recording.num_pages - 1)
    return "".join(_BARS[min(len(_BARS) - 1, peak * len(_BARS) // usable)] for peak in peaks)


def _mark(request: int) -> str:
    letter = _LETTERS[request % len(_LETTERS)]
    return click.style(letter, fg=_COLORS[request % len(_COLORS)], bold=True)


def _wrap(items: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for item in items:
        if lines and len(click.unstyle(lines[-1])) + 3 + len(click.unstyle(item)) <= width:
            lines[-1] += "   " + item
        else:
            lines.append(item)
    return lines
