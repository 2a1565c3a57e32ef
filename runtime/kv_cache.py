"""Sizes and strides of the paged KV cache, and the device memory behind it.

    layout    buffers                      shape              a token is          who writes it
    layers    key_cache.l, value_cache.l   [P, S, K, D]       2L rows of K*D      the model
    stacked   key_pool, value_pool         [L*P, S, K, D]     2L rows of K*D      the model
    rows      kv_rows_pool                 [P, S, L, 2, K, D] one row of 2L*K*D   the runtime

Page p of the pool is page p of every buffer: in a stacked one page l*P + p of each layer l. Every
size anyone needs is computed here once; planner, engine and tools ask the same spec.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from .dtypes import dtype as dtype_of
from .page_pool import pages_for

PAGE_ALIGNMENT = 128  # bytes; cache lines of the chips, and what their copies are fastest with
CacheLayout = Literal["layers", "stacked", "rows"]
SAFETY_FACTOR = 1.5  # of an average: half the batch again, because lengths differ


class KvCacheError(ValueError):
    """A cache geometry or size that cannot work; the text has the numbers."""


@dataclass(frozen=True)
class KvCacheSpec:
    """Geometry of a paged cache: L layers, K heads, D elements a head, S tokens a page.

    Raises KvCacheError unless a page of each buffer starts at a multiple of PAGE_ALIGNMENT bytes:
    in layout "rows" a page of all layers, otherwise a page of one.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    page_size: int
    layout: CacheLayout = "layers"

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "page_size"):
            if getattr(self, name) < 1:
                raise KvCacheError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.page_stride % PAGE_ALIGNMENT:
            step = PAGE_ALIGNMENT // math.gcd(PAGE_ALIGNMENT, self.token_stride)
            layers = "" if self.layout != "rows" else f"2 x {self.num_layers} layers x "
            unit = "" if self.layout == "rows" else " a layer"
            raise KvCacheError(
                f"a page of {self.page_size} tokens x {layers}{self.num_kv_heads} heads x "
                f"{self.head_dim} x {self.itemsize} bytes is {self.page_stride} bytes{unit}, not a "
                f"multiple of {PAGE_ALIGNMENT}: use a page_size that is a multiple of {step}"
            )

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return dtype_of(self.dtype).itemsize

    @property
    def bytes_per_token_per_layer(self) -> int:
        """Bytes of one token's K (or V) in one layer."""
        return self.num_kv_heads * self.head_dim * self.itemsize

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token: K and V of every layer."""
        return 2 * self.num_layers * self.bytes_per_token_per_layer

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page: K and V of every layer."""
        return self.page_size * self.bytes_per_token

    @property
    def token_stride(self) -> int:
        """Bytes from token to token inside a page of a buffer."""
        return self.bytes_per_token if self.layout == "rows" else self.bytes_per_token_per_layer

    @property
    def page_stride(self) -> int:
        """Bytes from page to page of a buffer."""
        return self.page_size * self.token_stride

    @property
    def in_place(self) -> bool:
        """Whether the model writes the pages itself, into its own inputs."""
        return self.layout != "rows"

    def buffer_bytes(self, num_pages: int) -> int:
        """Return the bytes of one buffer; all buffers of a layout are of one size."""
        return self.total_bytes(num_pages) // len(self.buffer_names())

    def total_bytes(self, num_pages: int) -> int:
        """Return the bytes of the whole cache, the null page included."""
        return num_pages * self.bytes_per_page

    def shape(self, num_pages: int) -> tuple[int, ...]:
        """Return the shape of one buffer."""
        page = (self.page_size, self.num_kv_heads, self.head_dim)
        if self.layout == "stacked":
            return (self.num_layers * num_pages, *page)
        if self.layout == "rows":
            return (num_pages, page[0], self.num_layers, 2, *page[1:])
        return (num_pages, *page)

    def buffer_names(self) -> tuple[str, ...]:
        """Return the sources of the buffers in order: all of keys, then all of values."""
        if self.layout == "stacked":
            return ("key_pool", "value_pool")
        if self.layout == "rows":
            return ("kv_rows_pool",)
        return tuple(
            f"{kind}_cache.{layer}" for kind in ("key", "value") for layer in range(self.num_layers)
        )

    def page_starts(self, page: int, num_pages: int) -> tuple[int, ...]:
        """Return where page `page` lies in one buffer, in bytes: one place, or L in a stacked one.

        Each place is page_stride bytes long.
        """
        layers = self.num_layers if self.layout == "stacked" else 1
        return tuple((layer * num_pages + page) * self.page_stride for layer in range(layers))

    def pages_in(self, budget_bytes: int) -> int:
        """Return P, the null page included, for a budget; raises KvCacheError below 2 pages."""
        pages = budget_bytes // self.bytes_per_page
        if pages < 2:
            raise KvCacheError(
                f"{budget_bytes} bytes hold {pages} page(s) of {self.bytes_per_page} bytes: at "
                f"least {2 * self.bytes_per_page} are needed (page 0 is the null page)"
            )
        return pages

    def pages_for_batch(
        self, batch: int, average_length: int, safety: float = SAFETY_FACTOR
    ) -> int:
        """Return P, the null page included, for `batch` sequences of `average_length` tokens."""
        return 1 + math.ceil(safety * batch * pages_for(average_length, self.page_size))


class CacheMemory(Protocol):
    """The part of `device.Device` that a cache needs."""

    def malloc(self, nbytes: int) -> int:
        """Return a device pointer."""

    def memset(self, pointer: int, nbytes: int, value: int) -> None:
        """Fill device memory."""

    def free(self, pointer: int) -> None:
        """Free a device pointer."""


class KvCache:
    """The buffers of a cache on a device, zeroed: dirty memory may hold NaN, and 0 x NaN is NaN."""

    def __init__(self, device: CacheMemory, spec: KvCacheSpec, num_pages: int) -> None:
        """Allocate; on a failure what was allocated before is freed again."""
        self.spec, self.num_pages = spec, num_pages
        self._device = device
        self.pointers: dict[str, int] = {}  # source -> device pointer
        nbytes = spec.buffer_bytes(num_pages)
        try:
            for name in spec.buffer_names():
                self.pointers[name] = device.malloc(nbytes)
                device.memset(self.pointers[name], nbytes, 0)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield (source, device pointer)."""
        return iter(self.pointers.items())

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.spec.total_bytes(self.num_pages)

    def close(self) -> None:
        """Free the buffers; a second call does nothing."""
        while self.pointers:
            _, pointer = self.pointers.popitem()
            self._device.free(pointer)
