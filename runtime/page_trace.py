"""A record of who holds which page, step by step, for `run-om pages`.

JSON lines: first {"format": 1, "num_pages": P, "page_size": S}; then, for each step in which
something changed, {"step": n, "held": {request: [pages]}, "gone": [requests]} with the requests
whose pages changed and those that hold none any more.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path

from .sequences import SequenceRows

FORMAT = 1

_log = logging.getLogger(__name__)


class PageTrace:
    """Appends to one file; for looking, not for speed: it walks the running sequences each step.

    A disk that fills up ends the recording with a warning, not the requests.
    """

    def __init__(self, path: str | Path) -> None:
        """Start a new file at `path`; raises OSError with the path when it cannot be opened."""
        self._path = path
        # One line at a time, so that `run-om pages --follow` sees each step when it happens.
        self._file = open(path, "w", buffering=1, encoding="utf-8")  # noqa: SIM115 - see close()
        self._known: dict[int, list[int]] = {}
        self._ended = False

    def begin(self, num_pages: int, page_size: int) -> None:
        """Write the head; raises OSError with the path when nothing can be written."""
        try:
            self._write({"format": FORMAT, "num_pages": num_pages, "page_size": page_size})
        except OSError as error:
            self.close()
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def record(self, step: int, rows: SequenceRows) -> None:
        """Write what changed since the last call."""
        if self._ended:
            return
        now: dict[int, list[int]] = {
            request.id: rows.table.pages(row).tolist() for row, request in enumerate(rows.requests)
        }
        held = {key: pages for key, pages in now.items() if self._known.get(key) != pages}
        gone = [key for key in self._known if key not in now]
        if held or gone:
            try:
                self._write({"step": step, "held": held, "gone": gone})
            except OSError as error:
                _log.warning("the recording %s ends at step %d: %s", self._path, step, error)
                self.close()
        self._known = now

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._ended = True
        with suppress(OSError):  # what a full disk did not take was reported when it was written
            self._file.close()

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")
