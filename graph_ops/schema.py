"""How an operator of domain `pagedom` is described: parameters, attributes, shape inference.

One declaration per operator serves the torch operator, the ONNX node and the checks of the
compiler. Shapes are written with the letters of the design (T tokens, B sequences, P pages,
S page size, M pages of a table row, H query heads, K key/value heads, D head dim); a letter stands
for one size everywhere in a node, `*` for any leading dimensions. "B+1" is one more than B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DOMAIN = "pagedom"
VERSION = 1
ONNX_OPSET = 18  # the newest whose operators ATC's ONNX parser registers
FLOATS = ("float32", "float16", "bfloat16")

Dim = int | str | None
Shape = tuple[Dim, ...]


class ShapeError(ValueError):
    """Inputs of an operator do not fit each other or its declaration."""


@dataclass(frozen=True)
class Param:
    """One input: its name, its shape in letters, and its dtype ("T": the node's float type)."""

    name: str
    shape: str
    dtype: str = "T"


@dataclass(frozen=True)
class Output:
    """One output; it has the shape and dtype of the input named `like`."""

    name: str
    like: str


@dataclass(frozen=True)
class Attribute:
    """One attribute; `default` None means that the node must carry it."""

    name: str
    kind: type
    default: float | int | None = None


@dataclass(frozen=True)
class OpSchema:
    """The declaration of one operator."""

    name: str
    inputs: tuple[Param, ...]
    outputs: tuple[Output, ...]
    attributes: tuple[Attribute, ...] = ()
    domain: str = field(default=DOMAIN, init=False)
    version: int = field(default=VERSION, init=False)

    def infer(
        self, shapes: Sequence[Sequence[Dim]], dtypes: Sequence[str]
    ) -> list[tuple[Shape, str]]:
        """Return (shape, dtype) of every output; raises ShapeError where inputs do not fit.

        A dim is a number, a symbol (str) or unknown (None). Two different symbols, or a symbol and
        a number, are taken to agree: only the run can tell.
        """
        if not len(shapes) == len(dtypes) == len(self.inputs):
            names = ", ".join(param.name for param in self.inputs)
            raise ShapeError(f"{self.name} takes {len(self.inputs)} inputs ({names}): {shapes}")
        sizes: dict[str, tuple[Dim, str]] = {}
        float_type: tuple[str, str] | None = None
        for param, shape, dtype in zip(self.inputs, shapes, dtypes):
            float_type = self._check_dtype(param, dtype, float_type)
            self._check_shape(param, tuple(shape), sizes)
        given = {p.name: (tuple(s), d) for p, s, d in zip(self.inputs, shapes, dtypes)}
        return [given[output.like] for output in self.outputs]

    def attribute_values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all attributes with defaults filled in; raises ShapeError for unknown/missing."""
        known = {attribute.name: attribute for attribute in self.attributes}
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ShapeError(f"{self.name} has no attribute {unknown[0]!r}: known are {[*known]}")
        values = {}
        for name, attribute in known.items():
            value = given.get(name, attribute.default)
            if value is None:
                raise ShapeError(f"{self.name} needs attribute {name!r}")
            values[name] = attribute.kind(value)
        return values

    def _check_dtype(
        self, param: Param, dtype: str, float_type: tuple[str, str] | None
    ) -> tuple[str, str] | None:
        if param.dtype != "T":
            if dtype != param.dtype:
                raise ShapeError(f"{self.name}: {param.name} is {dtype}, must be {param.dtype}")
            return float_type
        if dtype not in FLOATS:
            raise ShapeError(
                f"{self.name}: {param.name} is {dtype}, must be one of {', '.join(FLOATS)}"
            )
        if float_type is not None and dtype != float_type[0]:
            raise ShapeError(
                f"{self.name}: {param.name} is {dtype} but {float_type[1]} is {float_type[0]}: "
                "both must have one dtype"
            )
        return float_type or (dtype, param.name)

    def _check_shape(self, param: Param, shape: Shape, sizes: dict[str, tuple[Dim, str]]) -> None:
        letters = param.shape.split()
        if letters and letters[0] == "*":
            letters = letters[1:]
            if len(shape) >= len(letters):
                shape = shape[len(shape) - len(letters) :]
        if len(shape) != len(letters):
            raise ShapeError(
                f"{self.name}: {param.name} has shape {list(shape)}, must be [{param.shape}]"
            )
        for letter, size in zip(letters, shape):
            base, _, more = letter.partition("+")
            value = size - int(more) if more and isinstance(size, int) else size
            if more and not isinstance(size, int):
                continue
            known, where = sizes.setdefault(base, (value, param.name))
            if isinstance(known, int) and isinstance(value, int) and known != value:
                raise ShapeError(
                    f"{self.name}: {base} is {value} in {param.name} {list(shape)} "
                    f"but {known} in {where}"
                )
            if isinstance(value, int):
                sizes[base] = (value, param.name)
