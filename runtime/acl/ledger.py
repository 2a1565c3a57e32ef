"""The list of everything that was made and not yet destroyed, with the place that made it."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from pathlib import Path

LOG = logging.getLogger(__name__)

_HERE = str(Path(__file__).parent)
_SITE_FRAMES = 4  # our own Device and OmModel are frames too; the caller behind them matters more
_REMEMBERED = 4096  # destroyed things that can still be named


@dataclass(frozen=True)
class Record:
    """One live thing: kind such as "device memory", handle, size in bytes (or 0), creation site."""

    kind: str
    handle: int
    nbytes: int
    site: str

    def __str__(self) -> str:
        size = f" of {self.nbytes} bytes" if self.nbytes else ""
        return f"{self.kind} {self.handle:#x}{size} made at {self.site or 'unknown place'}"


def call_site() -> str:
    """Return "file:line < file:line ..." of the callers outside of runtime/acl, nearest first."""
    frame = sys._getframe(1)
    places: list[str] = []
    current = frame
    while current is not None and len(places) < _SITE_FRAMES:
        code = current.f_code
        if not code.co_filename.startswith(_HERE):
            places.append(f"{Path(code.co_filename).name}:{current.f_lineno}")
        following = current.f_back
        if following is None:
            break
        current = following
    return " < ".join(places)


class Ledger:
    """Counts always; remembers sites and destroyed things only when `checked`."""

    def __init__(self, checked: bool) -> None:
        self.checked = checked
        self.created: Counter[str] = Counter()
        self.destroyed: Counter[str] = Counter()
        self.usage_errors: list[str] = []
        self._live: dict[tuple[str, int], Record] = {}
        self._gone: OrderedDict[tuple[str, int], tuple[Record, str]] = OrderedDict()
        self._lock = threading.Lock()

    def opened(self, kind: str, handle: int, nbytes: int = 0) -> None:
        """Enter a new thing; an address that is used again is forgotten as destroyed."""
        record = Record(kind, handle, nbytes, call_site() if self.checked else "")
        with self._lock:
            self.created[kind] += 1
            self._live[kind, handle] = record
            self._gone.pop((kind, handle), None)

    def closed(self, kind: str, handle: int) -> None:
        """Strike a thing off."""
        site = call_site() if self.checked else ""
        with self._lock:
            record = self._live.pop((kind, handle), None)
            if record is None:
                return
            self.destroyed[kind] += 1
            if self.checked:
                self._gone[kind, handle] = (record, site)
                if len(self._gone) > _REMEMBERED:
                    self._gone.popitem(last=False)

    def describe(self, kind: str, handle: int) -> str:
        """Say what is known of a handle: live, destroyed (where), or never made."""
        record = self._live.get((kind, handle))
        if record is not None:
            return str(record)
        gone = self._gone.get((kind, handle))
        if gone is not None:
            return f"{gone[0]}, destroyed at {gone[1]}"
        return f"{kind} {handle:#x}, which was never made here or was destroyed"

    def destroyed_covering(self, kind: str, address: int) -> str | None:
        """Describe destroyed memory of a kind that covered an address, or None."""
        for record, site in list(self._gone.values()):
            if record.kind == kind and record.handle <= address < record.handle + record.nbytes:
                return f"{record}, freed at {site}"
        return None

    def live(self) -> list[Record]:
        """Everything not yet destroyed, oldest first."""
        with self._lock:
            return list(self._live.values())

    def live_counts(self) -> dict[str, int]:
        """Number of live things a kind, kinds with none left out."""
        with self._lock:
            return dict(Counter(record.kind for record in self._live.values()))

    def report(self) -> str:
        """List what is live, one line each, or "" when nothing is."""
        return "\n".join(str(record) for record in self.live())
