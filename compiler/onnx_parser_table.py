"""What ATC's ONNX parser knows: operators with the opsets they are registered for.

The parser looks an operator up by `<domain>::<opset in opset_import>::<type>`, exactly: there is
no fallback to an older opset. The table was extracted from the open plugins of CANN 9 (ops-nn,
ops-math, ops-transformer); `docs/design/atc.md` says how. Every opset of a row is a key of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MIN_OPSET, MAX_OPSET = 8, 18
OPSET_SOURCE = "ONNX parser of CANN 9, plugin registrations"
PARSER_SOURCE = "GE parser/parser/onnx/onnx_parser.cc"

# Handled by the parser itself, without a plugin.
NATIVE = frozenset({"Constant"})

# Graph-valued operators without a subgraph adapter; only `If` has one.
CONTROL_FLOW = frozenset({"Loop", "Scan", "SequenceMap"})

_TO_18 = """
Abs Add And ArgMax Cast Clip Concat ConstantOfShape Cos CumSum Div Dropout Einsum Equal Erf Exp
Expand Flatten Gather GatherElements GatherND Gemm Greater HardSwish Identity If IsInf IsNaN Less
LessOrEqual Log LogSoftmax MatMul Max Min Mish Mod Mul Multinomial Neg NonZero Not OneHot Or Pad Pow
RandomUniform RandomUniformLike Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum Reshape
ScatterND Shape Sigmoid Sin Size Softmax Split Sqrt Squeeze Sub Tanh Tile TopK Transpose Unsqueeze
Where
"""
_ROWS: dict[str, frozenset[int]] = {
    name: frozenset(range(MIN_OPSET, MAX_OPSET + 1)) for name in _TO_18.split()
}
_ROWS.update(
    {
        "GreaterOrEqual": frozenset({8, *range(12, 19)}),
        "LayerNormalization": frozenset({17, 18}),
        "ReduceL1": frozenset(range(8, 18)),
        "ReduceL2": frozenset(range(8, 18)),
        "ScatterElements": frozenset(range(11, 19)),
        "Slice": frozenset(range(10, 19)),
        "Trilu": frozenset(range(14, 19)),
    }
)
REGISTERED: Mapping[str, frozenset[int]] = MappingProxyType(_ROWS)

# Operators users meet in exported LLMs and that no opset of the parser has: what to do instead.
ABSENT: Mapping[str, str] = MappingProxyType(
    {
        "RMSNormalization": "use the RmsNorm operator of domain pagedom, or its function body",
        "SimplifiedLayerNormalization": "use the RmsNorm operator of domain pagedom",
        "RotaryEmbedding": "use the Rotary operator of domain pagedom, or its function body",
        "Attention": "use the PagedAttention operator of domain pagedom, or its function body",
        "TensorScatter": "use the KVUpdate operator of domain pagedom",
        "Swish": "write x * Sigmoid(x), or use the SwiGlu operator of domain pagedom",
        "Gelu": "write it with Erf",
        "GroupNormalization": "write it with ReduceMean, Sub, Mul and Sqrt",
        "QuantizeLinear": "fold the quantisation into weights, or register a plugin",
        "DequantizeLinear": "fold the dequantisation into weights, or register a plugin",
        "DynamicQuantizeLinear": "register a plugin for it",
        "MatMulInteger": "register a plugin for it",
        "QLinearMatMul": "register a plugin for it",
    }
)

# Huawei's own operators: domain "npu" version 1, and the default domain at opsets 11 to 18.
NPU_DOMAIN, NPU_VERSION = "npu", 1
NPU_DEFAULT_OPSETS = frozenset(range(11, 19))
_NPU = """
NPUPromptFlashAttention NPUIncreFlashAttention NPUFlashAttention NPUFusedAttentionScore
NPUFusedAttentionScoreFwd NPUMultiHeadAttention NPUScaledMaskedSoftmax
NPUMaskedSoftmaxWithRelPosBias NPURotaryPositionEmbedding NPURotaryMul NPURmsNorm NPUAddRmsNorm
NPUDynamicQuant NPUDynamicQuantV2 NPUAntiQuant NPUAscendQuantV2 NPUQuantize NPUGroupQuant
NPUMoeInitRouting NPUMoeFinalizeRouting NPUMoeFinalizeRoutingV2 NPUMoeComputeExpertTokens
NPUMoeGatingTopKSoftmax NPUGeglu NPUFastGelu NPUGeluV2 NPUMish NPUScatter NPUSlice NPUIndexing
NPUOneHot NPUDtypeCast NPUFormatCast NPUGroupNormSilu
"""
NPU_OPERATORS = frozenset(_NPU.split())
# Plugins that drop an attribute: (operator) -> (attribute, the value they always use).
IGNORED_ATTRIBUTES: Mapping[str, tuple[str, float]] = MappingProxyType(
    {"NPURmsNorm": ("epsilon", 1e-6), "NPUAddRmsNorm": ("epsilon", 1e-6)}
)


def domain_key(domain: str) -> str:
    """Return a domain as the parser spells it: the empty one is `ai.onnx`."""
    return domain or "ai.onnx"


def type_key(domain: str, version: int, op_type: str) -> str:
    """Return the key the parser looks an operator up by."""
    return f"{domain_key(domain)}::{version}::{op_type}"


def builtin_opsets(domain: str, op_type: str) -> frozenset[int]:
    """Return the opsets of `domain` for which CANN itself registers an operator; may be empty."""
    if domain in ("", "ai.onnx"):
        if op_type in NPU_OPERATORS:
            return NPU_DEFAULT_OPSETS
        return REGISTERED.get(op_type, frozenset())
    if domain == NPU_DOMAIN and op_type in NPU_OPERATORS:
        return frozenset({NPU_VERSION})
    return frozenset()
