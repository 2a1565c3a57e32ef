"""What a target is: frozen records whose every limit carries its source.

`docs/design/targets.md` lists what the short source names stand for.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.block_table import table_width

OPT = "platform_config of CANN 8.1.RC1"  # data/platform_config/<SoC>.ini of an installed toolkit
FIA_DOC = "op doc V4, FusedInferAttentionScore"
FIA_TILING = "tiling of CANN 9.1, FusedInferAttentionScore"
IFA_DOC = "op doc V4, IncreFlashAttention"
IFA_TILING = "tiling check, IncreFlashAttention"
OPS_INFO = "aic-<soc>-ops-info.json of CANN 8.1.RC1"  # which kernels a toolkit has
ATC_SHAPES = "ATC shape configuration guide"
OWN_RULE = "pagedom, docs/design/targets.md"


@dataclass(frozen=True)
class Limit:
    """A number with the place it comes from; value None means that no source gives one."""

    value: int | None
    source: str

    def allows(self, given: int) -> bool:
        """Return whether `given` is within the limit (always, when no limit is known)."""
        return self.value is None or given <= self.value


NO_LIMIT = Limit(None, "no limit in the sources read")


@dataclass(frozen=True)
class LocalBuffers:
    """Bytes of one core's local buffers, and where the sizes were read."""

    l1: int
    l0a: int
    l0b: int
    l0c: int
    ub: int
    source: str


@dataclass(frozen=True)
class FusedAttention:
    """The operator that attends over a paged cache, with the limits of its documentation."""

    op: str
    phases: tuple[str, ...]  # of "prefill", "decode": what the operator computes
    dtypes: tuple[str, ...]
    kv_dtypes: tuple[str, ...]
    dtype_source: str
    max_batch: Limit
    max_heads: Limit
    max_head_dim: Limit
    head_dim_multiple: Limit
    max_group: Limit  # query heads per KV head
    max_kv_len: Limit
    max_row: Limit  # K * D, one token of K in the BnBsH layout
    windows: bool
    window_source: str
    cache_layout: str = "BnBsH"
    documented_group: Limit = NO_LIMIT  # where the op doc promises less than max_group


@dataclass(frozen=True)
class CacheWrite:
    """How new K and V reach the pages."""

    op: str
    min_cann: str
    fallback: str
    negative_slots: bool  # slot < 0 writes nothing; otherwise padding needs a page of its own
    source: str


@dataclass(frozen=True)
class GearLimits:
    """What `--dynamic_dims` and `set_input_dynamic_dims` accept."""

    minimum: int
    maximum: int
    advised: int
    source: str
    total_dims: int  # ranks of all graph inputs, summed: places in the ACL dims structure
    dims_source: str


@dataclass(frozen=True)
class Feature:
    """A feature, whether the family has it, and the oldest CANN known to carry it."""

    name: str
    supported: bool
    min_cann: str  # "" = any, or does not apply
    source: str


@dataclass(frozen=True)
class Family:
    """Chips that share operators, limits and one lowering."""

    name: str
    op_config: str  # folder name of its kernels in opp/built-in
    dtypes: tuple[str, ...]
    dtype_source: str
    attention: FusedAttention | None  # None: composed from base operators
    prefill: str
    cache_write: CacheWrite
    kernels: frozenset[str]  # operators of ours beside attention and cache that it has
    kernel_source: str
    gears: GearLimits
    features: tuple[Feature, ...]
    default_page_size: int
    table_align: int  # block-table row width is a multiple of so many int32

    def feature(self, name: str) -> Feature:
        """Return the record of one feature; raises KeyError for a name not in the table."""
        for row in self.features:
            if row.name == name:
                return row
        raise KeyError(name)


@dataclass(frozen=True)
class Target:
    """One SoC that a model can be compiled for, or the embedded `host`."""

    name: str
    family: Family
    memory_bytes: Limit  # device memory as configured; value None = the user has to say
    ai_cores: Limit
    buffers: LocalBuffers | None

    @property
    def is_host(self) -> bool:
        """Whether this is the embedded target that runs on a CPU."""
        return self.family.name == "host"

    def table_width(self, max_seq_len: int, page_size: int, composed: bool = False) -> int:
        """Return M: pages of one sequence at most, rounded up to what the operator wants."""
        align = 1 if composed else self.family.table_align
        return table_width(max_seq_len, page_size, align)
