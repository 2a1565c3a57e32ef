"""The passes over the ONNX graph that make each form of a host artefact."""

from __future__ import annotations

from collections.abc import Sequence

from .host_forms import ROWS, HostForm
from .lower.compose_attention import ComposeAttention
from .lower.drop_cache_outputs import DropCacheOutputs
from .lower.fix_dims import FixDims
from .lower.infra import PassError
from .lower.inline_bodies import InlineBodies
from .lower.onnx_infra import OnnxPass
from .lower.seq_ends import SeqEnds
from .lower.stack_caches import StackCaches

# These rewrite all of a model or are of no use.
WHOLE = frozenset({"stack-caches", "compose-attention", "drop-cache-outputs", "fix-dims"})


def form_passes(form: HostForm) -> Sequence[OnnxPass]:
    """Return the passes; raises PassError for a form without the sizes it needs."""
    if form.is_plain:
        return [SeqEnds()]
    if not form.table_width or (form.gears and not form.num_pages):
        raise PassError(f"gears need P and M, rows need M: given are {form}")
    if form.cache_write == ROWS:
        pages = [FixDims({"P": form.num_pages})] if form.gears else []
        return [DropCacheOutputs(), ComposeAttention(form.table_width), InlineBodies(), *pages]
    stack = StackCaches(form.num_pages)
    return [DropCacheOutputs(), SeqEnds(), stack, FixDims({"M": form.table_width})]
