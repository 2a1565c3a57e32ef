"""All operators of domain `pagedom`, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from . import (
    kv_update,
    paged_attention,
    rms_norm,
    rotary,
    slot_update,
    swiglu,
    token_attention,
)
from .schema import OpSchema


@dataclass(frozen=True)
class Operator:
    """One operator: its declaration and the maker of its ONNX body for a float dtype."""

    schema: OpSchema
    function: Callable[[str], ir.Function]


_MODULES = (kv_update, paged_attention, rms_norm, rotary, slot_update, swiglu, token_attention)
OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {module.SCHEMA.name: Operator(module.SCHEMA, module.function) for module in _MODULES}
)
