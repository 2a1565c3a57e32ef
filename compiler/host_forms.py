"""The forms of a host artefact.

form         inputs of the cache                  shapes                    for what
plain        key_cache.l, value_cache.l           T B M P R at run time     speed
gears        key_pool, value_pool (all layers)    pairs (T,B); M, P fixed   as on 910B, 310P
rows         kv_rows_pool, new rows are outputs   T B P R at run time       as on 310B
rows, gears  kv_rows_pool, new rows are outputs   pairs (T,B); M, P fixed   as on 310B
"""

from __future__ import annotations

from dataclasses import dataclass

INPLACE, ROWS = "inplace", "rows"


@dataclass(frozen=True)
class HostForm:
    """One form: gears (T,B), P for them (0 = any), how the cache is written, M."""

    gears: tuple[tuple[int, int], ...] = ()
    num_pages: int = 0
    cache_write: str = INPLACE
    table_width: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether it is the form with a cache per layer and all shapes open."""
        return not self.gears and self.cache_write == INPLACE

    @property
    def max_batch(self) -> int | None:
        """Most sequences of a step, None without gears.

        Any step has to fit the largest gear, and one with fewer tokens than it needs a row for the
        dummy sequence that owns the padding.
        """
        return max(max(self.gears)[1] - 1, 1) if self.gears else None

    @property
    def cache_layout(self) -> str:
        """What the manifest says about the cache."""
        if self.cache_write == ROWS:
            return "token rows [P,S,L,2,K,D]"
        return "stacked BnBsH [L*P,S,K*D]" if self.gears else "BnBsH"

    def text(self) -> str:
        """The form in words, for people."""
        parts = []
        if self.gears:
            listed = ", ".join(f"{tokens} x {seqs}" for tokens, seqs in self.gears)
            parts.append(f"gears (tokens x sequences) {listed}; {self.num_pages} pages")
        if self.cache_write == ROWS:
            parts.append("new K/V rows are an output, copied into the pages by the runtime")
        return "; ".join(parts) or "any shape, caches written in place"


PLAIN = HostForm()
