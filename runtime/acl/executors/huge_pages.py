"""Large pages under the weights that a library has packed for itself.

OpenVINO packs 16-bit weights into ordinary memory of 4 KiB pages, and a decode step reads all of
it once: the address translation of a quarter of a gigabyte costs about 5 % of a step. Linux can put
2 MiB pages in their place afterwards (MADV_COLLAPSE, since 6.1); the content does not change, and
where the kernel does not know or does not want it, nothing happens.
"""

from __future__ import annotations

import ctypes
import logging
import threading

_PAGE = 2 << 20
_LEAST = 2 * _PAGE  # smaller areas are not worth a call
_MADV_COLLAPSE = 25  # linux/mman.h

_log = logging.getLogger(__name__)

Area = tuple[int, int]  # first address, end


def anonymous_areas() -> list[Area]:
    """Return this process's large private writable areas that belong to no file (Linux)."""
    areas = []
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as lines:
            for line in lines:
                fields = line.split()
                if len(fields) > 5 or fields[1][:2] != "rw":
                    continue
                first, end = (int(part, 16) for part in fields[0].split("-"))
                if end - first >= _LEAST:
                    areas.append((first, end))
    except OSError:
        return []
    return areas


def added(before: list[Area], after: list[Area]) -> list[Area]:
    """Return what of `after` was not part of `before`, in whole large pages.

    >>> M = 2 << 20
    >>> added([(4 * M, 8 * M)], [(4 * M, 9 * M), (16 * M, 20 * M + 5)])
    [(33554432, 41943040)]
    """
    found = []
    for first, end in after:
        pieces = [(first, end)]
        for old_first, old_end in before:
            pieces = [
                part
                for a, b in pieces
                for part in ((a, min(b, old_first)), (max(a, old_end), b))
                if part[0] < part[1]
            ]
        for a, b in pieces:
            start, stop = -(-a // _PAGE) * _PAGE, b // _PAGE * _PAGE
            if stop - start >= _LEAST:
                found.append((start, stop))
    return found


def collapse_in_background(before: list[Area]) -> threading.Thread | None:
    """Ask for large pages under all memory that was added since `before`; returns the thread.

    A short thread of its own, because the kernel copies page by page (half a second for 270 MB).
    An area that is gone by then is refused by the kernel, which harms nothing.
    """
    areas = added(before, anonymous_areas())
    if not areas:
        return None
    thread = threading.Thread(target=_collapse, args=(areas,), name="huge-pages", daemon=True)
    thread.start()
    return thread


def _collapse(areas: list[Area]) -> None:
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    refused = 0
    for first, end in areas:
        refused += madvise(first, end - first, _MADV_COLLAPSE) != 0
    _log.debug("large pages: %d areas asked for, %d refused", len(areas), refused)
