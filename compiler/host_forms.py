"""The forms of a host artefact, and the passes that make each.

    form         inputs of the cache                  shapes                    for what
    plain        key_cache.l, value_cache.l           T B M P R at run time     speed
    gears        key_pool, value_pool (all layers)    pairs (T,B); M, P fixed   as on 910B, 310P
    rows         kv_rows_pool, new rows are outputs   T B P R at run time       as on 310B
    rows, gears  kv_rows_pool, new rows are outputs   pairs (T,B); M, P fixed   as on 310B
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .lower.compose_attention import ComposeAttention
from .lower.drop_cache_outputs import DropCacheOutputs
from .lower.fix_dims import FixDims
from .lower.infra import PassError
from .lower.inline_bodies import InlineBodies
from .lower.onnx_infra import OnnxPass
from .lower.seq_ends import SeqEnds
from .lower.stack_caches import StackCaches

INPLACE, ROWS = "inplace", "rows"


@dataclass(frozen=True)
class HostForm:
    """One form: gears (T,B), P for them (0 = any), how the cache is written, M."""

    gears: tuple[tuple[int, int], ...] = ()
    num_pages: int = 0
    cache_write: str = INPLACE
    table_width: int = 0

    @property
    def cache_layout(self) -> str:
        """What the manifest says about the cache."""
        if self.cache_write == ROWS:
            return "token rows [P,S,L,2,K,D]"
        return "stacked BnBsH [L*P,S,K*D]" if self.gears else "BnBsH"

    def passes(self) -> Sequence[OnnxPass]:
        """Return the passes over the ONNX graph; raises PassError for a form without its sizes."""
        if (self.gears and not self.num_pages) or (self != HostForm() and not self.table_width):
            raise PassError(f"gears need P and M, rows need M: given are {self}")
        fixed = {"M": self.table_width, "P": self.num_pages} if self.gears else {}
        if self.cache_write == ROWS:
            fixed.pop("M", None)  # composed attention has fixed it
            fix = [FixDims(fixed)] if fixed else []
            return [DropCacheOutputs(), ComposeAttention(self.table_width), InlineBodies(), *fix]
        if self.gears:
            fixed.pop("P")  # the stacked pools have fixed it
            stack = StackCaches(self.num_pages)
            return [DropCacheOutputs(), SeqEnds(), stack, FixDims(fixed)]
        return [SeqEnds()]
