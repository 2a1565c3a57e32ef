"""A record of who holds which page, step by step, for `run-om pages`.

JSON lines: first {"format": 1, "num_pages": P, "page_size": S}; then, for each step in which
something changed, {"step": n, "held": {request: [pages]}, "gone": [requests]} with the requests
whose pages changed and those that hold none any more.
"""

from __future__ import annotations

import json
from pathlib import Path

from .sequences import SequenceRows

FORMAT = 1


class PageTrace:
    """Appends to one file; for looking, not for speed: it walks the running sequences each step."""

    def __init__(self, path: str | Path, num_pages: int, page_size: int) -> None:
        """Start a new file at `path`."""
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._known: dict[int, list[int]] = {}
        self._write({"format": FORMAT, "num_pages": num_pages, "page_size": page_size})

    def record(self, step: int, rows: SequenceRows) -> None:
        """Write what changed since the last call."""
        now: dict[int, list[int]] = {
            request.id: rows.table.pages(row).tolist() for row, request in enumerate(rows.requests)
        }
        held = {key: pages for key, pages in now.items() if self._known.get(key) != pages}
        gone = [key for key in self._known if key not in now]
        if held or gone:
            self._write({"step": step, "held": held, "gone": gone})
        self._known = now

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")
