"""Page-size advice: the legal sizes, one recommendation, and the rule that made it.

A small page wastes less of a sequence's last page and shares more of a common prefix; a large one
means shorter block tables and is what the fast kernels want. The advisor starts at the size that
the target's operators prefer, and leaves it only when a page of one head would not fit a core's
local buffer twice, or when the given lengths would waste more than a quarter of the cache.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..runtime.dtypes import dtype as dtype_row
from .page_rules import (
    Geometry,
    PageContext,
    PageRule,
    legal_page_sizes,
    page_rules,
    recommended_page_size,
)
from .target_records import FIA_DOC, Target

WASTE_LIMIT = 0.25  # share of the cache; above it a smaller page is advised
_MAX_LENGTH = 1 << 31


class LengthsError(ValueError):
    """A file of sequence lengths cannot be used; the text names file and line."""


class NoLegalPageError(ValueError):
    """No page size works for this model on this target; the text lists the rules."""


@dataclass(frozen=True)
class PageRequest:
    """What the advice depends on beside target and model."""

    kv_dtype: str
    max_seq_len: int
    lengths: np.ndarray | None = None  # int64 [n], tokens of whole sequences
    shared_prefix: int = 0  # tokens that requests have in common, 0 = none
    attention: str = "fused"
    executor: str = "openvino"


@dataclass(frozen=True)
class PageRow:
    """What one page size means."""

    page_size: int
    waste: float  # share of the allocated cache that holds no token, 0..1
    waste_tokens: float  # mean per sequence
    pages: float  # mean per sequence
    table_width: int  # M, pages of a sequence of max_seq_len
    page_bytes: int  # K and V of all heads, one layer
    head_bytes: int  # K of one head
    fits_twice: bool | None  # one head's page, double buffered in L0B; None = no such buffer
    prefix_reused: int  # of shared_prefix, whole pages only
    prefix_lost: float  # tokens computed again per hit, for prefixes of any length


@dataclass(frozen=True)
class PageAdvice:
    """The answer: every number that the rendering shows."""

    target: str
    kv_dtype: str
    rules: tuple[PageRule, ...]
    legal: tuple[int, ...]
    rows: tuple[PageRow, ...]
    recommended: int
    decided_by: str
    why: str
    distribution: str
    kv_row: int  # K * D
    kv_row_limit: int | None
    kv_row_source: str
    buffer_source: str

    def to_json(self) -> dict[str, Any]:
        """Return the advice as JSON-ready data."""
        return asdict(self)


def advise_pages(
    target: Target, geometry: Geometry, request: PageRequest, num_layers: int = 1
) -> PageAdvice:
    """Return legal page sizes, the cost of each and one recommendation.

    Raises NoLegalPageError when the rules exclude each other. `num_layers` scales page_bytes.
    """
    context = PageContext(target, geometry, request.kv_dtype, request.attention, request.executor)
    legal = legal_page_sizes(context)
    rules = page_rules(context)
    if not legal:
        listed = "; ".join(f"{rule.phase}: {rule.text} ({rule.source})" for rule in rules)
        raise NoLegalPageError(f"no page size is legal on {target.name} for this model: {listed}")
    preferred = recommended_page_size(context) or legal[0]
    rows = tuple(
        _row(size, target, geometry, request, num_layers) for size in _shown(legal, preferred)
    )
    best, rule, why = _decide(rows, preferred, target, request)
    fused = target.family.attention if request.attention == "fused" else None
    return PageAdvice(
        target=target.name,
        kv_dtype=request.kv_dtype,
        rules=rules,
        legal=legal,
        rows=rows,
        recommended=best,
        decided_by=rule,
        why=why,
        distribution=_describe(request),
        kv_row=geometry.num_kv_heads * geometry.head_dim,
        kv_row_limit=fused.max_row.value if fused else None,
        kv_row_source=fused.max_row.source if fused else "",
        buffer_source=target.buffers.source if target.buffers else "",
    )


def _shown(legal: tuple[int, ...], preferred: int) -> list[int]:
    """Doublings of the smallest legal size, and the preferred one: the rest lies in between."""
    sizes = {preferred}
    size = legal[0]
    while size <= legal[-1]:
        if size in legal:
            sizes.add(size)
        size *= 2
    return sorted(sizes)


def _row(
    size: int, target: Target, geometry: Geometry, request: PageRequest, num_layers: int
) -> PageRow:
    lengths = _lengths(request)
    pages = -(-lengths // size)
    allocated = pages * size
    item = dtype_row(request.kv_dtype).itemsize
    head_bytes = size * geometry.head_dim * item
    fits = None if target.buffers is None else 2 * head_bytes <= target.buffers.l0b
    return PageRow(
        page_size=size,
        waste=float(1.0 - lengths.sum() / allocated.sum()),
        waste_tokens=float((allocated - lengths).mean()),
        pages=float(pages.mean()),
        table_width=-(-request.max_seq_len // size),
        page_bytes=2 * geometry.num_kv_heads * head_bytes * num_layers,
        head_bytes=head_bytes,
        fits_twice=fits,
        prefix_reused=request.shared_prefix // size * size,
        prefix_lost=(size - 1) / 2,
    )


def _lengths(request: PageRequest) -> np.ndarray:
    if request.lengths is None:
        return np.arange(1, request.max_seq_len + 1, dtype=np.int64)
    return np.minimum(request.lengths.astype(np.int64), request.max_seq_len)


def _describe(request: PageRequest) -> str:
    if request.lengths is None:
        return f"no lengths given: every length from 1 to {request.max_seq_len} equally likely"
    over = int((request.lengths > request.max_seq_len).sum())
    mean = float(_lengths(request).mean())
    text = f"{request.lengths.size} lengths, mean {mean:.1f}"
    return text + (f"; {over} above max_seq_len, counted as {request.max_seq_len}" if over else "")


def _decide(
    rows: tuple[PageRow, ...], preferred: int, target: Target, request: PageRequest
) -> tuple[int, str, str]:
    best, rule, why = preferred, *_preference(preferred, target, request)
    by_size = {row.page_size: row for row in rows}
    if by_size[best].fits_twice is False:
        fitting = [row.page_size for row in rows if row.fits_twice and row.page_size < best]
        if fitting:
            best = fitting[-1]
            rule = "local buffers"
            why = f"the largest page of which one head's K fits L0B twice ({target.name})"
    if by_size[best].waste <= WASTE_LIMIT:
        return best, rule, why
    smaller = [row for row in rows if row.page_size < best]
    if not smaller:
        return best, rule, why + "; no smaller page is legal"
    good = [row for row in smaller if row.waste <= WASTE_LIMIT]
    chosen = good[-1] if good else smaller[0]
    before, after = by_size[best].waste, chosen.waste
    return (
        chosen.page_size,
        "expected waste",
        f"{before:.0%} of the cache would be empty with pages of {best}, {after:.0%} with "
        f"{chosen.page_size} (limit {WASTE_LIMIT:.0%})",
    )


def _preference(preferred: int, target: Target, request: PageRequest) -> tuple[str, str]:
    if target.is_host:
        why = "one block of OpenVINO's paged attention, the smallest page it has"
        return ("multiple of 32", why) if request.executor == "openvino" else ("default", why)
    op = target.family.attention
    if request.attention == "composed" or op is None:
        return "default", f"{preferred}: fewer rows to gather and to copy than with smaller pages"
    if op.op == "FusedInferAttentionScore":
        return (
            "upper bound",
            f"{preferred}: the op doc's upper bound for TND ({FIA_DOC} l.1576/1594), and the size "
            "that cann-recipes-infer and vllm-ascend run",
        )
    return "advised by the op doc", f"{preferred}: advised for paged decode ({op.op}, l.452-460)"


def read_lengths(path: Path) -> np.ndarray:
    """Return the lengths in a text file, one positive integer a line; '#' begins a comment.

    Raises LengthsError naming file, line and what was found there.
    """
    found: list[int] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                text = line.split("#", 1)[0].strip()
                if text:
                    found.append(_length(text, path, number))
    except UnicodeDecodeError as error:
        raise LengthsError(
            f"cannot read lengths from {path}: it is no UTF-8 text (byte {error.start}); write one "
            "number of tokens a line"
        ) from None
    except OSError as error:
        raise LengthsError(f"cannot read lengths from {path}: {error.strerror}") from error
    if not found:
        raise LengthsError(f"{path} holds no length: write one number of tokens a line")
    return np.array(found, dtype=np.int64)


def _length(text: str, path: Path, number: int) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text[:12]) < _MAX_LENGTH and len(text) < 12:
        return int(text)
    raise LengthsError(
        f"{path}, line {number}: {text[:40]!r} is no length; write one whole number of tokens "
        "above 0 a line"
    )
