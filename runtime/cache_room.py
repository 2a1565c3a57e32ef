"""How many pages the free memory of a device holds, asked before the cache is allocated.

An allocation that fails says 207001 and no more. Here a pool that was asked for and does not fit is
refused with the numbers; one whose size nobody gave gets what there is room for.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from .kv_cache import KvCacheError, KvCacheSpec
from .number_text import counted, size_text
from .page_pool import pages_for

HUGE_PAGE_BYTES = 2 << 20  # an NPU allocates more than 1 MB in such pages (RT FAQ, HUGE_FIRST)
NULL_PAGES = 1

_log = logging.getLogger(__name__)


class CacheRoomError(KvCacheError):
    """A KV cache that the device has no memory for; the text has the numbers and what to change."""


@dataclass(frozen=True)
class CacheRoom:
    """What is free once the model is loaded, and what it is asked for.

    granule: bytes that each buffer is rounded up to. later_bytes: what the model itself takes when
    it first runs, left free by a cache of which nobody gave the size. compiled: that size is in
    the model.
    """

    spec: KvCacheSpec
    free_bytes: int
    total_bytes: int
    granule: int = 1
    later_bytes: int = 0
    compiled: bool = False

    def most_pages(self, left_bytes: int = 0) -> int:
        """Return the pages that fit, the null page included, with so many bytes left over."""
        buffers = len(self.spec.buffer_names())
        each = max(0, self.free_bytes - left_bytes) // buffers // self.granule * self.granule
        return each // self.spec.buffer_bytes(1)

    def pages(self, wanted: int, least: int) -> int:
        """Return the pages to allocate: `wanted`, or as many as fit, but `least`.

        least: `wanted` where no other number will do, which was given or is compiled. Raises
        CacheRoomError where not even `least` fit.
        """
        most = self.most_pages(0 if least == wanted else self.later_bytes)
        if wanted <= most:
            return wanted
        if most < least:
            raise CacheRoomError(self._refusal(least, most, given=least == wanted))
        _log.warning(
            "the KV cache gets %s instead of %d: %s",
            counted(most, "page"),
            wanted,
            self._free(),
        )
        return most

    def _free(self) -> str:
        return (
            f"with the model loaded {size_text(self.free_bytes)} of {size_text(self.total_bytes)} "
            "are free on the device"
        )

    def _refusal(self, pages: int, most: int, given: bool) -> str:
        needed = size_text(self.spec.total_bytes(pages))
        room = f"{self._free()}, room for {counted(most, 'page')}"
        what = f"the KV cache of {counted(pages, 'page')} of {self.spec.page_size} tokens"
        if self.compiled:
            change = "compile again with fewer (--num-pages)"
        elif given:
            change = "lower the number of pages or the size of the cache (num_pages, kv_bytes)"
        else:
            what += ", for one sequence of full length,"
            change = "ask for fewer pages, for shorter sequences (num_pages)"
        return f"{what} needs {needed}; {room}. Close other users of the device, or {change}"


def least_pages(spec: KvCacheSpec, max_seq_len: int) -> int:
    """Return the pages with which one sequence of full length can run."""
    return NULL_PAGES + pages_for(max_seq_len, spec.page_size)
