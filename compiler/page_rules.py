"""Which page sizes a target's operators accept, rule by rule.

A page rule holds for some phases of attention; a size is legal when every rule of the combination
accepts it. Where the op doc is narrower than the tiling code, the code's bound decides what is
legal and the doc's bound what is *documented*: sizes between the two come with a caution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Protocol

from ..runtime.acl.executors.page_sizes import OPENVINO_BLOCK
from ..runtime.dtypes import dtype as dtype_row
from .target_records import FIA_DOC, FIA_TILING, IFA_DOC, IFA_TILING, OWN_RULE, Target

_IFA_BLOCK = 128  # tokens: the inner block is a multiple
_LISTED_MAX = 1024  # where no rule has an upper bound, sizes are listed up to here
_PAGE_ALIGN_BYTES = 128
_FIA_TND = FIA_TILING + " l.1193-1200: TND, BnBsH"
_FIA_TND_DOC = FIA_DOC + " l.1576/1594: TND, at most 128"
_FIA_OTHER = FIA_DOC + " l.999: head_dim not 64 or 128"


class Geometry(Protocol):
    """What the rules need of a model; `ModelConfig` is one."""

    @property
    def num_heads(self) -> int:
        """H, query heads."""

    @property
    def num_kv_heads(self) -> int:
        """K, key/value heads."""

    @property
    def head_dim(self) -> int:
        """D, elements of one head."""

    @property
    def windows(self) -> tuple[int, ...]:
        """Attention window per layer in tokens, -1 = all."""


@dataclass(frozen=True)
class PageContext:
    """What a page rule depends on: target, model, type of the cache, kind of execution."""

    target: Target
    geometry: Geometry
    kv_dtype: str
    attention: str = "fused"  # or "composed": function bodies in base operators
    executor: str = "openvino"  # host only: or "oracle"


@dataclass(frozen=True)
class PageRule:
    """One bound on the page size in tokens, with the phase it belongs to and its source."""

    name: str
    phase: str  # "prefill", "decode", "prefill and decode"
    multiple: int
    maximum: int | None
    source: str
    documented_max: int | None = None  # a stricter bound in the op doc
    documented_source: str = ""

    def allows(self, page_size: int) -> bool:
        """Return whether the rule accepts a page of `page_size` tokens."""
        if page_size < 1 or page_size % self.multiple:
            return False
        return self.maximum is None or page_size <= self.maximum

    @property
    def text(self) -> str:
        """The rule in words: 'a multiple of 16, at most 512'."""
        words = f"a multiple of {self.multiple}" if self.multiple > 1 else "at least 1"
        return words if self.maximum is None else f"{words}, at most {self.maximum}"


def _fia_rules(head_dim: int, kv_dtype: str) -> tuple[PageRule, ...]:
    both = PageRule("page-tnd", "prefill and decode", 16, 512, _FIA_TND, 128, _FIA_TND_DOC)
    rules = [both]
    if head_dim not in (64, 128):
        prefill = PageRule("page-prefill", "prefill", 128, 1024, _FIA_OTHER + ", query length > 1")
        decode = PageRule("page-decode", "decode", 16, 512, _FIA_OTHER + ", query length 1")
        rules = [replace(both, multiple=1), prefill, decode]
    if kv_dtype == "int8":
        rules.append(PageRule("page-int8", "prefill and decode", 32, 512, FIA_DOC + ": int8 KV"))
    return tuple(rules)


def _ifa_rules(geometry: Geometry) -> tuple[PageRule, ...]:
    """Each token is a sequence to the operator, so prompts have the rules of decoding."""
    both = "prefill and decode"
    rules = [PageRule("page-incre", both, 16, 512, IFA_DOC + " l.452-460", 512)]
    group = geometry.num_heads // max(geometry.num_kv_heads, 1)
    if group > 1:
        # Its tiling divides by the whole pages of the inner block: 0 for larger pages.
        inner = _IFA_BLOCK * min(80 // group, 64)
        source = IFA_TILING + " l.2330-2360 of 8.5.0: pages in the inner block of grouped heads"
        rules.append(PageRule("page-group", both, 1, min(inner, 512), source))
    return tuple(rules)


def _host_rules(executor: str) -> tuple[PageRule, ...]:
    if executor == "oracle":
        return (PageRule("page-oracle", "prefill and decode", 1, None, "the oracle executor"),)
    block = OPENVINO_BLOCK
    source = (
        f"OpenVINO PagedAttentionExtension 2026.4: blocks of {block}; 16 needs the oracle executor"
    )
    return (PageRule("page-openvino", "prefill and decode", block, None, source),)


def page_rules(context: PageContext) -> tuple[PageRule, ...]:
    """Return the page rules of one combination, in the order in which they are reported."""
    target = context.target
    rules: tuple[PageRule, ...]
    if target.is_host:
        rules = _host_rules(context.executor)
    elif target.family.attention is None or context.attention == "composed":
        source = OWN_RULE + ": the composed lowering gathers whole pages, the cube unit is 16 wide"
        rules = (PageRule("page-composed", "prefill and decode", 16, None, source),)
    elif target.family.attention.op == "FusedInferAttentionScore":
        rules = _fia_rules(context.geometry.head_dim, context.kv_dtype)
    else:
        rules = _ifa_rules(context.geometry)
    return (*rules, _alignment_rule(context))


def _alignment_rule(context: PageContext) -> PageRule:
    """The bytes of a page of one layer's K are a multiple of 128, so pages never share a line."""
    token = token_bytes(context.geometry, context.kv_dtype)
    multiple = _PAGE_ALIGN_BYTES // gcd(_PAGE_ALIGN_BYTES, token)
    source = f"{OWN_RULE}: a page of one layer is a multiple of 128 bytes, a token has {token}"
    return PageRule("page-bytes", "prefill and decode", multiple, None, source)


def token_bytes(geometry: Geometry, kv_dtype: str) -> int:
    """Return the bytes of one token's K (or V) in one layer."""
    return geometry.num_kv_heads * geometry.head_dim * dtype_row(kv_dtype).itemsize


def legal_page_sizes(context: PageContext) -> tuple[int, ...]:
    """Return every legal page size, ascending; up to 1024 where no rule has an upper bound."""
    rules = page_rules(context)
    bounds = [rule.maximum for rule in rules if rule.maximum is not None]
    top = min(bounds, default=_LISTED_MAX)
    return tuple(size for size in range(1, top + 1) if all(rule.allows(size) for rule in rules))


def recommended_page_size(context: PageContext) -> int | None:
    """Return the page size to use when nothing else decides, None when no size is legal.

    That is the family's default where it is legal (128 on the chips: the op doc's upper bound for
    TND, and what cann-recipes-infer and vllm-ascend run; 32 on the host: one OpenVINO block),
    otherwise the legal size nearest to it.
    """
    default = context.target.family.default_page_size
    legal = legal_page_sizes(context)
    return min(legal, key=lambda size: (abs(size - default), size), default=None)


def nearest_legal(context: PageContext, page_size: int) -> tuple[int, ...]:
    """Return the next legal size below and above `page_size` (one of them at either end)."""
    legal = legal_page_sizes(context)
    below = [size for size in legal if size < page_size][-1:]
    above = [size for size in legal if size > page_size][:1]
    return (*below, *above)
