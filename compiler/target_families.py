"""The families: operators, limits and features, each with its source."""

from __future__ import annotations

from ..runtime.block_table import ROW_ALIGNMENT
from .target_records import (
    ATC_SHAPES,
    FIA_DOC,
    FIA_TILING,
    IFA_DOC,
    IFA_TILING,
    NO_LIMIT,
    OPS_INFO,
    OWN_RULE,
    CacheWrite,
    Family,
    Feature,
    FusedAttention,
    GearLimits,
    Limit,
)

_HALVES = ("float16", "bfloat16")
_ALL_KERNELS = frozenset({"RmsNorm", "Rotary", "SwiGlu"})

_FIA = FusedAttention(
    op="FusedInferAttentionScore",
    phases=("prefill", "decode"),
    dtypes=_HALVES,
    kv_dtypes=(*_HALVES, "int8"),
    dtype_source=FIA_DOC,
    max_batch=Limit(65536, FIA_DOC),
    max_heads=Limit(256, FIA_DOC),
    max_head_dim=Limit(256, FIA_TILING + ": TND with equal head_dim of Q, K and V"),
    head_dim_multiple=Limit(1, FIA_DOC),
    max_group=NO_LIMIT,
    max_kv_len=NO_LIMIT,
    max_row=Limit(65535, FIA_DOC + ": BnBsH cache"),
    windows=True,
    window_source=FIA_DOC + ": sparse_mode 4",
)

_IFA = FusedAttention(
    op="IncreFlashAttention",
    phases=("decode",),
    dtypes=("float16",),
    kv_dtypes=("float16",),
    dtype_source=IFA_DOC + ": 310P takes fp16, no quantised KV",
    max_batch=Limit(256, IFA_DOC + ": 310P"),
    max_heads=NO_LIMIT,
    max_head_dim=Limit(128, IFA_TILING + " l.364-394: GQA on 310P"),
    head_dim_multiple=Limit(16, IFA_DOC + ": 310P"),
    max_group=Limit(32, IFA_TILING + " l.364-394: (H / K) x query length on 310P"),
    max_kv_len=Limit(65536, IFA_DOC + ": 310P"),
    max_row=Limit(65535, FIA_DOC + ": BnBsH cache (same layout)"),
    windows=False,
    window_source=IFA_DOC + ": no sparse_mode attribute",
    documented_group=Limit(1, IFA_DOC + ": num_key_value_heads only 0 on 310P"),
)

_SCATTER_PA = CacheWrite(
    op="ScatterPaKvCache",
    min_cann="8.5.0",
    fallback="two ScatterNdUpdate",
    negative_slots=True,
    source="op prototype, ScatterPaKvCache: absent from CANN 8.1.RC1, present from 8.5.0",
)
# Chips that need a CANN which always has it: there is no older way to fall back to.
_SCATTER_PA_ALWAYS = CacheWrite(
    op="ScatterPaKvCache",
    min_cann="",
    fallback="",
    negative_slots=True,
    source="op prototype, ScatterPaKvCache: present from CANN 8.5.0, in every release for the chip",
)
_SCATTER_ND = CacheWrite(
    op="two ScatterNdUpdate",
    min_cann="8.1",
    fallback="",
    negative_slots=False,
    source="op prototype of CANN 8.1.RC1, ScatterNdUpdate: no negative index documented",
)
_ROWS = CacheWrite(
    op="new rows as one output, copied by the runtime",
    min_cann="",
    fallback="",
    negative_slots=True,
    source=OWN_RULE + ": no paged cache writer has a 310B kernel",
)
_IN_OP = CacheWrite(
    op="inside the attention op",
    min_cann="",
    fallback="new rows as one output, copied by the runtime",
    negative_slots=True,
    source="OpenVINO PagedAttentionExtension 2026.4",
)


def _gears(maximum: int) -> GearLimits:
    return GearLimits(
        minimum=2,
        maximum=maximum,
        advised=4,
        source=ATC_SHAPES + ", --dynamic_dims",
        total_dims=128,
        dims_source="acl_mdl.h, aclmdlIODims of aclmdlSetInputDynamicDims",
    )


def _features(
    ranges: bool, sink: bool, ops_cann: str, plugin_cann: str, plugin_source: str
) -> tuple[Feature, ...]:
    return (
        Feature("range shapes", ranges, "", ATC_SHAPES + ": --input_shape, not on 310B"),
        Feature("gears", True, "", ATC_SHAPES + ": --dynamic_dims"),
        Feature(
            "tiling on device",
            sink,
            "",
            "ATC option --tiling_schedule_optimize: A2, A3, 950, 310P yes; 310B, 910 no",
        ),
        Feature("attention op", bool(ops_cann), ops_cann, "op_proto headers and op docs"),
        Feature("ONNX plugin", True, plugin_cann, plugin_source),
    )


_PLUGIN_A2 = "custom-op sample of asc-devkit: A2 and A3 from CANN 9.0.0 (its guide says 'not yet')"
_ANY_PLUGIN = "ATC loads <ASCEND_CUSTOM_OPP_PATH>/framework/*.so (GE tbe_plugin_loader)"

ASCEND_910B = Family(
    name="Ascend910B",
    op_config="ascend910b",
    dtypes=_HALVES,
    dtype_source=FIA_DOC,
    attention=_FIA,
    prefill="FusedInferAttentionScore (TND)",
    cache_write=_SCATTER_PA,
    kernels=_ALL_KERNELS,
    kernel_source="op docs: RmsNorm, RotaryPositionEmbedding, SwiGlu on A2, A3, 950",
    gears=_gears(100),
    features=_features(True, True, "8.1", "", _ANY_PLUGIN),
    default_page_size=128,
    table_align=ROW_ALIGNMENT,
)
ASCEND_910_93 = Family(
    name="Ascend910_93",
    op_config="ascend910_93",
    dtypes=_HALVES,
    dtype_source=FIA_DOC,
    attention=_FIA,
    prefill="FusedInferAttentionScore (TND)",
    cache_write=_SCATTER_PA_ALWAYS,
    kernels=_ALL_KERNELS,
    kernel_source="op docs: RmsNorm, RotaryPositionEmbedding, SwiGlu on A2, A3, 950",
    gears=_gears(100),
    features=_features(True, True, "8.1", "9.0.0", _PLUGIN_A2),
    default_page_size=128,
    table_align=ROW_ALIGNMENT,
)
ASCEND_950 = Family(
    name="Ascend950",
    op_config="ascend950",
    dtypes=_HALVES,
    dtype_source="op doc V5, FusedInferAttentionScore",
    attention=_FIA,
    prefill="FusedInferAttentionScore (TND)",
    cache_write=_SCATTER_PA_ALWAYS,
    kernels=_ALL_KERNELS,
    kernel_source="op docs: RmsNorm, RotaryPositionEmbedding, SwiGlu on A2, A3, 950",
    gears=_gears(256),
    features=_features(
        True, True, "9.1.0", "9.1.0", "custom-op sample of asc-devkit: 950 from CANN 9.1.0"
    ),
    default_page_size=128,
    table_align=ROW_ALIGNMENT,
)
ASCEND_310P = Family(
    name="Ascend310P",
    op_config="ascend310p",
    dtypes=("float16",),
    dtype_source="no bf16 hardware on 310P; " + IFA_DOC + ": fp16 only",
    attention=_IFA,
    prefill="IncreFlashAttention, each token as a sequence",
    cache_write=_SCATTER_ND,
    kernels=frozenset({"RmsNorm", "SwiGlu"}),
    kernel_source=OPS_INFO + ", ascend310p: no RotaryPositionEmbedding",
    gears=_gears(100),
    features=_features(True, True, "8.1", "", _ANY_PLUGIN),
    default_page_size=128,
    table_align=ROW_ALIGNMENT,
)
ASCEND_310B = Family(
    name="Ascend310B",
    op_config="ascend310b",
    dtypes=("float16",),
    dtype_source=OPS_INFO + ", ascend310b: no bf16 form of Cast, GatherV2, SelectV2",
    attention=None,
    prefill="composed",
    cache_write=_ROWS,
    kernels=frozenset(),
    kernel_source=OPS_INFO + ", ascend310b",
    gears=_gears(100),
    features=_features(False, False, "", "", _ANY_PLUGIN),
    default_page_size=128,
    table_align=ROW_ALIGNMENT,
)
HOST = Family(
    name="host",
    op_config="",
    dtypes=("float32", "bfloat16", "float16"),
    dtype_source="the embedded executors, docs/design/targets.md",
    attention=None,
    prefill="OpenVINO PagedAttentionExtension",
    cache_write=_IN_OP,
    kernels=_ALL_KERNELS,
    kernel_source="the embedded executors",
    gears=_gears(100),
    features=(
        Feature("range shapes", True, "", "the embedded compiler"),
        Feature("gears", True, "", "the embedded compiler, limits as on a device"),
    ),
    default_page_size=32,
    table_align=1,
)

FAMILIES = (ASCEND_910B, ASCEND_910_93, ASCEND_950, ASCEND_310P, ASCEND_310B, HOST)
