"""Symbols that a form of the model fixes (M, P) become numbers in every shape of the graph.

    block_table [B,M] with M = 32    ->    block_table [B,32]

Precondition: each symbol occurs in an input. Postcondition: none of the symbols is left.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ..onnx_cleanup import graph_values
from .infra import PassResult, Skip


class FixDims:
    """See the module's text; `sizes` maps a symbol to its size."""

    name = "fix-dims"

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)

    def __call__(self, model: ir.Model) -> PassResult:
        """Rewrite the shapes; a symbol that no input has is skipped."""
        result = PassResult()
        found: set[str] = set()
        for value in graph_values(model.graph):
            if value.shape is None:
                continue
            dims = [d if isinstance(d, int) else d.value for d in value.shape]
            fixed = [self.sizes.get(d, d) if isinstance(d, str) else d for d in dims]
            if fixed != dims:
                found.update(d for d in dims if isinstance(d, str) and d in self.sizes)
                value.shape = ir.Shape(fixed)
                result.modified += 1
        for symbol in sorted(set(self.sizes) - found):
            result.skipped.append(Skip(symbol, "no shape of the graph has this symbol"))
        return result
